import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { runHint } from '../../src/domain/change.ts';
import { type INITIAL_STATUSES, MOVES, type StageVerb, type Status } from '../../src/domain/lifecycle.ts';
import { progressOf } from '../../src/domain/progress.ts';
import { STAGE_KINDS, type Stage, type StageKind, type TimeSpan } from '../../src/domain/run.ts';
import type { StageChanges } from '../../src/store/contract/stage.ts';
import { describeStore, openOn } from './on_store.ts';
import { newStage, RunScene, SILENT, substepPlan } from './run_scene.ts';
import { refusalOf } from './scene.ts';
import { dumpNamespace } from './sql.ts';
import { statementsOf } from './statement_count.ts';

const RACERS = 20;
const ALL = { limit: 1000, after: undefined };

describeStore('stages', (on) => {
  const scene = () => new RunScene(on.store);
  const update = (here: RunScene, { id }: { readonly id: string }, changes: StageChanges) =>
    here.store.updateStage(here.namespace, id, changes);
  const move = (here: RunScene, { id }: Stage, verb: StageVerb, details = {}) =>
    here.store.moveStage(here.caller, id, verb, { ...SILENT, ...details });
  const tallyOf = async (here: RunScene, key: bigint) => {
    const tally = (await here.store.tallyRuns(here.namespace, [key])).get(key);
    if (tally === undefined) throw new Error('no tally');
    return tally;
  };

  it('C-10: a stage has the values of its creation, and is found by its id and by kind and number', async () => {
    const here = scene();
    const run = await here.makeRun();
    const details = {
      kind: 'EVAL',
      number: 7n,
      status: 'INITIALIZING',
      batch: 0n,
      phase: 'warming up \u{1f30a}',
      modelUri: 's3://weights/7',
      totalSubsteps: 0n,
      metadataJson: ' {"a": 1.0}',
    } as const;
    const { stage, created } = await here.store.getOrCreateStage(here.caller, newStage(run.id, details));
    expect(created).toBe(true);
    expect(stage).toMatchObject({
      ...details,
      run: { key: run.key, id: run.id },
      statusMessage: '',
      modelCheckpointUri: '',
      completedSubsteps: 0n,
      startTime: undefined,
      endTime: undefined,
      revision: 1n,
    });
    expect([stage.metrics.size, stage.timings.size]).toEqual([0, 0]);
    const get = (which: Parameters<typeof here.store.getStage>[1]) => here.store.getStage(here.namespace, which);
    expect(await get({ id: stage.id })).toEqual(stage);
    expect(await get({ runId: run.id, kind: 'EVAL', number: 7n })).toEqual(stage);
    expect(await get({ runId: run.id, kind: 'TRAIN_STEP', number: 7n })).toBeUndefined();
    expect(await get({ id: randomUUID() })).toBeUndefined();
    expect(await here.store.getStage('other', { id: stage.id })).toBeUndefined();
    const bare = await here.stage(run, { number: 2n ** 63n - 1n });
    expect(bare).toMatchObject({ batch: undefined, totalSubsteps: undefined, metadataJson: '' });
  });

  it('a stage that exists is returned unchanged, whatever the request contains, and nothing is written', async () => {
    const here = scene();
    const run = await here.makeRun();
    const made = await here.stage(run, { number: 1n, phase: 'first' });
    const before = await dumpNamespace(on.sql, here.namespace);
    const again = newStage(run.id, { number: 1n, phase: 'second', status: 'RUNNING', batch: 4n });
    expect(await here.store.getOrCreateStage(here.caller, again)).toEqual({ stage: made, created: false });
    expect(await dumpNamespace(on.sql, here.namespace)).toBe(before);
  });

  it('twenty racers for one stage get one row and one first StatusChange, and one of them created it, also over two servers', async () => {
    const here = scene();
    const other = on.engine === 'postgres' ? await openOn(on.database) : on.store;
    try {
      for (const kind of STAGE_KINDS) {
        const run = await here.makeRun();
        const answers = await Promise.all(
          Array.from({ length: RACERS }, (_, i) =>
            (i % 2 === 0 ? on.store : other).getOrCreateStage(here.caller, newStage(run.id, { kind, number: 3n })),
          ),
        );
        expect(new Set(answers.map(({ stage }) => stage.id)).size).toBe(1);
        expect(answers.filter(({ created }) => created)).toHaveLength(1);
        expect(await here.store.listStages(here.namespace, run.id, {}, ALL, 'FULL')).toEqual([answers[0]?.stage]);
        expect(await here.history('STAGE', answers[0]!.stage)).toMatchObject([{ ordinal: 0n, newStatus: 'PENDING' }]);
      }
    } finally {
      if (other !== on.store) await other.close();
    }
  });

  it('N1: an unknown run, or one of another namespace, has no stages', async () => {
    const here = scene();
    const run = await here.makeRun();
    const stage = await here.stage(run);
    const calls = (namespace: string, runId: string) => [
      () => here.store.getOrCreateStage({ namespace, actor: 'x' }, newStage(runId)),
      () => here.store.listStages(namespace, runId, {}, ALL, 'BASIC'),
    ];
    for (const call of [...calls('other', run.id), ...calls(here.namespace, randomUUID())])
      expect(await refusalOf(call())).toMatchObject({ reason: 'RUN_NOT_FOUND' });
    for (const [namespace, id] of [
      ['other', stage.id],
      [here.namespace, randomUUID()],
    ] as const) {
      const caller = { namespace, actor: 'x' };
      expect(await refusalOf(here.store.updateStage(namespace, id, { phase: 'x' }))).toMatchObject({
        reason: 'STAGE_NOT_FOUND',
        metadata: { stage: id },
      });
      expect((await refusalOf(here.store.moveStage(caller, id, 'start', SILENT))).reason).toBe('STAGE_NOT_FOUND');
    }
  });

  it('lists stages in order of creation or of numbers, or in reverse, by kind and status, in pages', async () => {
    const here = scene();
    const run = await here.makeRun();
    const made: Stage[] = [];
    for (const number of [5n, 1n, 3n])
      for (const kind of STAGE_KINDS) made.push(await here.stage(run, { kind, number, metadataJson: '{"big":1}' }));
    await here.stage(await here.makeRun());
    const list = (filter = {}, page: { limit: number; after: bigint | undefined } = ALL) =>
      here.store.listStages(here.namespace, run.id, filter, page, 'FULL');
    expect(await list()).toEqual(made);
    expect(await list({ descending: true })).toEqual(made.toReversed());
    expect(await list({ kinds: ['EVAL', 'BASELINE'] })).toEqual(made.filter(({ kind }) => kind !== 'TRAIN_STEP'));
    const first = await list({}, { limit: 4, after: undefined });
    expect(await list({}, { limit: 99, after: first.at(-1)!.key })).toEqual(made.slice(4));
    expect(await list({ descending: true }, { limit: 2, after: made[4]!.key })).toEqual([made[3], made[2]]);
    for (const descending of [false, true]) {
      const ordered = [...made.slice(3, 6), ...made.slice(6), ...made.slice(0, 3)];
      if (descending) ordered.reverse();
      const paged: Stage[] = [];
      for (let after: bigint | undefined; ; after = paged.at(-1)!.key) {
        const page = await list({ byNumber: true, descending }, { limit: 2, after });
        paged.push(...page);
        if (page.length < 2) break;
      }
      expect(paged).toEqual(ordered);
    }
    const moved = await move(here, made[2]!, 'start');
    expect(await list({ statuses: ['RUNNING', 'CANCELLED'] })).toEqual([moved]);
    expect(await list({ statuses: [] })).toEqual([]);
    expect(await list({ kinds: [] })).toEqual([]);
    const basic = await here.store.listStages(here.namespace, run.id, {}, ALL, 'BASIC');
    expect(basic.map(({ metadataJson }) => metadataJson)).toEqual(made.map(() => ''));
  });

  it('C-33: the stage to resume from is the COMPLETED one with a model checkpoint that has the highest number', async () => {
    const here = scene();
    const run = await here.makeRun();
    const checkpointed = { statuses: ['COMPLETED'], hasCheckpoint: true, byNumber: true, descending: true } as const;
    const find = async (kind: StageKind) => {
      const filter = { ...checkpointed, kinds: [kind] };
      const [found] = await here.store.listStages(here.namespace, run.id, filter, { ...ALL, limit: 1 }, 'FULL');
      return found;
    };
    const latest = async (kind: StageKind = 'TRAIN_STEP') => (await find(kind))?.number;
    expect(await latest()).toBeUndefined();
    const make = async (number: bigint, verb: 'complete' | 'fail', modelCheckpointUri: string) => {
      const stage = await here.stage(run, { number, status: 'RUNNING' });
      await update(here, stage, { modelCheckpointUri });
      return move(here, stage, verb);
    };
    await make(10n, 'complete', 's3://10');
    await make(9n, 'complete', 's3://9');
    await make(11n, 'complete', '');
    await make(12n, 'fail', 's3://12');
    await update(here, await here.stage(run, { number: 13n, status: 'RUNNING' }), { modelCheckpointUri: 's3://13' });
    expect(await latest()).toBe(10n);
    expect(await latest('EVAL')).toBeUndefined();
    expect((await find('TRAIN_STEP'))?.modelCheckpointUri).toBe('s3://10');
    await make(100n, 'complete', 's3://100');
    expect(await latest()).toBe(100n);
  });

  it('FM7: an update changes the fields it sets, merges metrics and timings by key, and clears fields set to empty', async () => {
    const here = scene();
    const run = await here.makeRun();
    const stage = await here.stage(run, { batch: 3n, totalSubsteps: 9n });
    const span = (startTime?: bigint, endTime?: bigint): TimeSpan => ({ startTime, endTime });
    const first = await update(here, stage, {
      statusMessage: 'm',
      phase: 'p',
      modelUri: 'u',
      modelCheckpointUri: 'c',
      metadataJson: '[]',
      metrics: new Map([
        ['loss', Number.NaN],
        ['kl', -0],
        ['__proto__', 1],
      ]),
      timings: new Map([
        ['rollout', span(1_700_000_000_123_456_789n, undefined)],
        ['__proto__', span()],
      ]),
    });
    expect(first).toMatchObject({ statusMessage: 'm', phase: 'p', modelUri: 'u', modelCheckpointUri: 'c', batch: 3n });
    expect(first).toMatchObject({ metadataJson: '[]', totalSubsteps: 9n, status: 'PENDING', revision: 2n });
    expect(await here.store.getStage(here.namespace, { id: stage.id })).toEqual(first);
    const second = await update(here, stage, {
      batch: undefined,
      totalSubsteps: undefined,
      metrics: new Map([['loss', Number.POSITIVE_INFINITY]]),
      timings: new Map([
        ['rollout', span(1n, 2n)],
        ['training', span(undefined, -1n)],
      ]),
    });
    expect(second).toMatchObject({ batch: undefined, totalSubsteps: undefined, phase: 'p', revision: 3n });
    expect(Object.fromEntries(second.metrics)).toEqual(
      Object.fromEntries([
        ['loss', Number.POSITIVE_INFINITY],
        ['kl', -0],
        ['__proto__', 1],
      ]),
    );
    expect([...second.timings].sort()).toEqual([
      ['__proto__', span()],
      ['rollout', span(1n, 2n)],
      ['training', span(undefined, -1n)],
    ]);
    expect(second.updateTime).toBeGreaterThan(first.updateTime);
  });

  it('FM7: more than 256 metrics or 64 timings in total are refused by name, and change nothing', async () => {
    const here = scene();
    const stage = await here.stage(await here.makeRun());
    const some = <T>(count: number, from: number, value: T) =>
      new Map(Array.from({ length: count }, (_, i) => [`k${from + i}`, value] as const));
    const none = { startTime: undefined, endTime: undefined };
    const full = await update(here, stage, { metrics: some(256, 0, 1), timings: some(64, 0, none) });
    for (const [field, changes] of [
      ['metrics', { metrics: some(1, 256, 1), phase: 'x' }],
      ['timings', { timings: some(2, 63, none), phase: 'x' }],
    ] as const)
      expect(await refusalOf(update(here, stage, changes))).toMatchObject({
        reason: 'INVALID_REQUEST',
        violations: [{ field }],
      });
    expect(await here.store.getStage(here.namespace, { id: stage.id })).toEqual(full);
  });

  it('L2, L5: every verb from every status follows the table, with its StatusChange and its times', async () => {
    const here = scene();
    const run = await here.makeRun();
    let number = 0n;
    const ways: Readonly<Record<string, readonly [(typeof INITIAL_STATUSES)[number], ...StageVerb[]]>> = {
      PENDING: ['PENDING'],
      INITIALIZING: ['INITIALIZING'],
      RUNNING: ['RUNNING'],
      COMPLETED: ['RUNNING', 'complete'],
      FAILED: ['PENDING', 'fail'],
      CANCELLED: ['INITIALIZING', 'cancel'],
    };
    for (const [status, [initial, ...verbs]] of Object.entries(ways) as [Status, (typeof ways)[string]][])
      for (const verb of Object.keys(MOVES.stage) as StageVerb[]) {
        number += 1n;
        let stage = await here.stage(run, { number, status: initial });
        for (const each of verbs) stage = await move(here, stage, each);
        expect(stage.status).toBe(status);
        const before = await here.history('STAGE', stage);
        const { from, to } = MOVES.stage[verb];
        const call = move(here, stage, verb, { message: from.includes(status) ? 'why' : '', phase: 'ph' });
        if (from.includes(status)) {
          const moved = await call;
          expect(moved).toMatchObject({ status: to, statusMessage: 'why', phase: 'ph', revision: stage.revision + 1n });
          const running = to === 'RUNNING' || status === 'RUNNING' || status === 'COMPLETED';
          expect(moved.startTime !== undefined).toBe(running);
          expect(moved.endTime).toBe(to === 'RUNNING' ? undefined : moved.updateTime);
          const history = await here.history('STAGE', stage);
          expect(history.slice(0, -1)).toEqual(before);
          expect(history.at(-1)).toMatchObject({
            ordinal: BigInt(before.length),
            oldStatus: status,
            newStatus: to,
            phase: 'ph',
            message: 'why',
            actor: 'tester',
            changeTime: moved.updateTime,
          });
        } else {
          if (status === to) expect(await call).toEqual(stage);
          else
            expect(await refusalOf(call)).toMatchObject({ reason: 'ILLEGAL_TRANSITION', metadata: { status, verb } });
          expect(await here.store.getStage(here.namespace, { id: stage.id })).toEqual(stage);
          expect(await here.history('STAGE', stage)).toEqual(before);
        }
      }
  });

  it('L5: the same end again writes nothing, another message is RESULT_CONFLICT; no verb of a stage changes its run', async () => {
    const here = scene();
    const run = await here.makeRun();
    const stage = await here.stage(run, { status: 'RUNNING' });
    const done = await move(here, stage, 'complete', { message: 'good' });
    expect(await move(here, stage, 'complete', { message: 'good' })).toEqual(done);
    expect((await refusalOf(move(here, stage, 'complete', { message: 'bad' }))).reason).toBe('RESULT_CONFLICT');
    await here.store.updateStage(here.namespace, stage.id, { statusMessage: 'bad' });
    expect((await move(here, stage, 'complete', { message: 'good' })).statusMessage).toBe('bad');
    expect(await move(here, stage, 'reopen')).toMatchObject({
      status: 'RUNNING',
      statusMessage: '',
      endTime: undefined,
    });
    expect((await here.run(run.id)).status).toBe('PENDING');
  });

  it('L5: progress updates never change a status, and the history records the progress of the stage', async () => {
    const here = scene();
    const run = await here.makeRun({ plan: substepPlan(2, 4) });
    const stage = await here.stage(run, { status: 'RUNNING', phase: 'rollout' });
    expect(await update(here, stage, { completedSubsteps: 4n })).toMatchObject({ status: 'RUNNING' });
    await update(here, stage, { completedSubsteps: 1n, phase: 'training' });
    await move(here, stage, 'fail');
    const history = await here.history('STAGE', stage);
    expect(history.map(({ newStatus, phase, progressPercent }) => [newStatus, phase, progressPercent])).toEqual([
      ['RUNNING', 'rollout', 0],
      ['FAILED', 'training', 25],
    ]);
    const unplanned = await here.stage(await here.makeRun());
    expect((await here.history('STAGE', unplanned))[0]?.progressPercent).toBeUndefined();
  });

  it('M2: the database times substeps between reports, not before the first nor without progress, and restarts when the count falls', async () => {
    const here = scene();
    const run = await here.makeRun({ plan: substepPlan(1, 100) });
    const stage = await here.stage(run, { status: 'RUNNING', totalSubsteps: 100n });
    const timed = async () => (await tallyOf(here, run.key)).substeps.count;
    await update(here, stage, { completedSubsteps: 5n });
    expect(await tallyOf(here, run.key)).toMatchObject({ substeps: { count: 0n, seconds: 0 } });
    const before = await on.store.getStage(here.namespace, { id: stage.id });
    const after = await update(here, stage, { completedSubsteps: 8n });
    const { substeps } = await tallyOf(here, run.key);
    expect(substeps.count).toBe(3n);
    expect(substeps.seconds).toBeCloseTo(Number(after.updateTime - before!.updateTime) / 1e9, 6);
    await update(here, stage, { completedSubsteps: 8n, phase: 'x' });
    expect(await timed()).toBe(3n);
    await update(here, stage, { completedSubsteps: 0n });
    expect(await timed()).toBe(3n);
    await update(here, stage, { completedSubsteps: 2n });
    expect(await timed()).toBe(5n);
    await move(here, stage, 'complete');
    const seconds = (await tallyOf(here, run.key)).substeps.seconds;
    await on.sql.rows(`update stages set substeps_time = '2020-01-01T00:00:00.000000Z' where key = ${stage.key}`);
    await move(here, stage, 'reopen');
    await update(here, stage, { completedSubsteps: 3n });
    const again = (await tallyOf(here, run.key)).substeps;
    expect(again.count).toBe(6n);
    // The years without progress are not counted.
    expect(again.seconds - seconds).toBeLessThan(3600);
  });

  it('M2: the tally counts stages by kind and status, and has an entry for every requested run', async () => {
    const here = scene();
    const [run, bare] = [await here.makeRun({ plan: substepPlan(10, 4) }), await here.makeRun()];
    const stages: Stage[] = [];
    for (let number = 0n; number < 6n; number += 1n)
      stages.push(await here.stage(run, { number: 5n - number, status: 'RUNNING' }));
    const [a, b, c, , e] = stages as [Stage, Stage, Stage, Stage, Stage];
    await update(here, a, { completedSubsteps: 4n });
    await update(here, b, { completedSubsteps: 2n, phase: 'training' });
    await update(here, e, { completedSubsteps: 1n, totalSubsteps: 2n });
    await move(here, a, 'complete');
    await move(here, b, 'fail');
    await move(here, c, 'cancel');
    const evaluation = await here.stage(run, { kind: 'EVAL', number: 3n });
    const tallies = await here.store.tallyRuns(here.namespace, [run.key, bare.key, 987_654_321n]);
    expect([...tallies.keys()]).toEqual([run.key, bare.key, 987_654_321n]);
    const empty = {
      kinds: [],
      openStages: [],
      turns: { count: 0n, seconds: 0 },
      substeps: { count: 0n, seconds: 0 },
    };
    expect([tallies.get(bare.key), tallies.get(987_654_321n)]).toEqual([empty, empty]);
    const tally = tallies.get(run.key)!;
    const counts = { pending: 0n, open: 3n, completed: 1n, failed: 1n, cancelled: 1n };
    expect(tally.kinds).toMatchObject([
      {
        kind: 'TRAIN_STEP',
        ...counts,
        completedStages: { rollouts: 0n, turns: 0n, substeps: 4n },
        abandonedStages: {
          turns: 0n,
          substeps: 2n,
          expectedTurns: 0,
          expectedSubsteps: 8,
          shares: 0.5,
          weightedShares: 0,
        },
      },
      { kind: 'EVAL', pending: 1n, open: 0n },
    ]);
    expect(tally.openStages.map(({ kind, number }) => `${kind} ${number}`)).toEqual([
      'TRAIN_STEP 0',
      'TRAIN_STEP 1',
      'TRAIN_STEP 2',
      'EVAL 3',
    ]);
    expect(tally.openStages[1]).toMatchObject({
      id: e.id,
      status: 'RUNNING',
      completedSubsteps: 1n,
      totalSubsteps: 2n,
    });
    expect(tally.openStages[3]).toMatchObject({ id: evaluation.id, status: 'PENDING', totalSubsteps: undefined });
    const progress = progressOf('RUNNING', substepPlan(10, 4), tally);
    expect(progress).toMatchObject({ substepsDone: 7n, substepsExpected: 4n + 8n + 4n + 4n + 2n + 16n });
    expect(await here.store.tallyRuns('other', [run.key])).toEqual(new Map([[run.key, empty]]));
  });

  it('M2: counts at the limit of int64 are kept, and their sums do not overflow', async () => {
    const here = scene();
    const run = await here.makeRun({ plan: substepPlan(2, 4) });
    const most = 2n ** 63n - 1n;
    for (const number of [1n, 2n]) {
      const stage = await here.stage(run, { number, status: 'RUNNING' });
      for (const completedSubsteps of [0n, most, 0n, most])
        expect(await update(here, stage, { completedSubsteps, totalSubsteps: most })).toMatchObject({
          completedSubsteps,
        });
      await move(here, stage, 'complete');
    }
    const tally = await tallyOf(here, run.key);
    expect(tally.kinds[0]?.completedStages.substeps).toBeGreaterThan(most);
    expect(progressOf('RUNNING', substepPlan(2, 4), tally)).toMatchObject({ percent: 100, substepsDone: most });
  });

  it('K-C6: tallies take four statements, however many runs and stages there are', async () => {
    const here = scene();
    const runs = await Promise.all(Array.from({ length: 12 }, () => here.makeRun()));
    const cost = (count: number) =>
      statementsOf(on.engine, () =>
        here.store.tallyRuns(
          here.namespace,
          runs.slice(0, count).map(({ key }) => key),
        ),
      );
    expect(await cost(1)).toBe(4);
    for (const run of runs)
      for (let number = 0n; number < 8n; number += 1n) await here.stage(run, { number, status: 'RUNNING' });
    expect(await cost(12)).toBe(4);
  });

  it('M5: every write to a stage raises its revision and notifies watchers of its run; a call without a write notifies nobody', async () => {
    const here = scene();
    const run = await here.makeRun();
    const notified: unknown[] = [];
    const stop = here.store.onChange((hint) => notified.push(hint));
    const tellings = async (work: () => Promise<unknown>) => {
      notified.length = 0;
      await work();
      return notified.filter((hint) => hint === runHint(run.key)).length;
    };
    const stage = await here.stage(run, { status: 'RUNNING' });
    expect(await tellings(() => update(here, stage, { phase: 'x' }))).toBeGreaterThan(0);
    expect(await tellings(() => move(here, stage, 'complete'))).toBeGreaterThan(0);
    expect(await tellings(() => here.stage(run, { number: 9n }))).toBeGreaterThan(0);
    stop();
    expect((await here.store.getStage(here.namespace, { id: stage.id }))?.revision).toBe(3n);
    const changed = await here.store.readRunChanges(here.namespace, run.id, undefined, true);
    expect(changed?.stages.map(({ number }) => number)).toEqual([0n, 9n]);
  });

  it('concurrent updates, verbs and creations of stages of one run all succeed', async () => {
    const here = scene();
    const run = await here.makeRun();
    const stage = await here.stage(run, { status: 'RUNNING' });
    await Promise.all([
      ...Array.from({ length: RACERS }, (_, i) => update(here, stage, { metrics: new Map([[`m${i}`, i]]) })),
      ...Array.from({ length: RACERS }, (_, i) => here.stage(run, { number: BigInt(i % 5) })),
      move(here, stage, 'complete'),
    ]);
    const after = await here.store.getStage(here.namespace, { id: stage.id });
    expect(after).toMatchObject({ status: 'COMPLETED', revision: 2n + BigInt(RACERS) });
    expect(after?.metrics.size).toBe(RACERS);
  });
});
