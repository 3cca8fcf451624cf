import { expect, it } from 'vitest';
import {
  INITIAL_STATUSES,
  isTerminal,
  MOVES,
  STATUSES,
  type Status,
  VERBS,
  type Verb,
} from '../../src/domain/lifecycle.ts';
import type { Run } from '../../src/domain/run.ts';
import { describeStore } from './on_store.ts';
import { RunScene, substepPlan } from './run_scene.ts';
import { refusalOf } from './scene.ts';
import { dumpNamespace } from './sql.ts';

/** The verbs that bring a new run to each status. */
const WAYS: Readonly<
  Record<Status, { readonly status: (typeof INITIAL_STATUSES)[number]; readonly verbs: readonly Verb[] }>
> = {
  PENDING: { status: 'PENDING', verbs: [] },
  INITIALIZING: { status: 'INITIALIZING', verbs: [] },
  RUNNING: { status: 'RUNNING', verbs: [] },
  PAUSED: { status: 'RUNNING', verbs: ['pause'] },
  COMPLETED: { status: 'RUNNING', verbs: ['complete'] },
  FAILED: { status: 'PENDING', verbs: ['fail'] },
  CANCELLED: { status: 'INITIALIZING', verbs: ['cancel'] },
};

describeStore('verbs of runs', (on) => {
  const scene = () => new RunScene(on.store);

  async function runIn(here: RunScene, status: Status): Promise<Run> {
    const way = WAYS[status];
    let run = await here.makeRun({ status: way.status });
    for (const verb of way.verbs) run = await here.move(run, verb);
    expect(run.status).toBe(status);
    return run;
  }

  it('L2: a run is created PENDING, INITIALIZING or RUNNING, and the first StatusChange records it', async () => {
    const here = scene();
    for (const status of INITIAL_STATUSES) {
      const run = await here.makeRun({ status });
      expect(run).toMatchObject({ status, startTime: status === 'RUNNING' ? run.createTime : undefined });
      expect(await here.history('RUN', run)).toEqual([
        {
          ordinal: 0n,
          oldStatus: undefined,
          newStatus: status,
          phase: '',
          message: '',
          metadataJson: '',
          actor: 'tester',
          progressPercent: undefined,
          changeTime: run.createTime,
        },
      ]);
    }
  });

  it('L2, L5: every verb from every status follows the table: changes it and is recorded, has taken effect already, or is refused', async () => {
    const here = scene();
    for (const status of STATUSES)
      for (const verb of VERBS) {
        const run = await runIn(here, status);
        const before = (await here.history('RUN', run)).length;
        const { from, to } = MOVES.run[verb];
        const call = here.move(run, verb);
        if (from.includes(status)) {
          expect(await call).toMatchObject({ status: to, revision: run.revision + 1n });
          const history = await here.history('RUN', run);
          expect(history).toHaveLength(before + 1);
          expect(history.at(-1)).toMatchObject({ oldStatus: status, newStatus: to, ordinal: BigInt(before) });
        } else if (status === to) {
          expect(await call).toEqual(run);
          expect(await here.history('RUN', run)).toHaveLength(before);
        } else {
          expect(await refusalOf(call)).toMatchObject({ reason: 'ILLEGAL_TRANSITION', metadata: { status, verb } });
          expect(await here.run(run.id)).toEqual(run);
          expect(await here.history('RUN', run)).toHaveLength(before);
        }
      }
  });

  it('L5: message and phase of a verb are stored in the run and in its history; an unset phase stays', async () => {
    const here = scene();
    const made = await here.makeRun();
    const started = await here.move(made, 'start', { message: 'go', phase: 'rollout', metadataJson: '{"host":"a"}' });
    expect(started).toMatchObject({ statusMessage: 'go', phase: 'rollout', resultJson: '', endTime: undefined });
    expect(started.startTime).toBe(started.updateTime);
    const paused = await here.move(made, 'pause');
    expect(paused).toMatchObject({ statusMessage: '', phase: 'rollout', startTime: started.startTime });
    const resumed = await here.move(made, 'resume', { phase: '' });
    expect(resumed).toMatchObject({ phase: '', startTime: started.startTime });
    const done = await here.move(made, 'complete', { message: 'won', resultJson: ' {"score": 1.0} ' });
    expect(done).toMatchObject({ statusMessage: 'won', resultJson: ' {"score": 1.0} ', startTime: started.startTime });
    expect(done.endTime).toBe(done.updateTime);
    expect(await here.history('RUN', made)).toMatchObject([
      { newStatus: 'PENDING' },
      { newStatus: 'RUNNING', message: 'go', phase: 'rollout', metadataJson: '{"host":"a"}', actor: 'tester' },
      { newStatus: 'PAUSED', message: '', phase: 'rollout', metadataJson: '' },
      { newStatus: 'RUNNING', phase: '' },
      { newStatus: 'COMPLETED', message: 'won', changeTime: done.endTime },
    ]);
  });

  it('L2: reopening clears end, message and result; the start time stays, and a later end is a new one', async () => {
    const here = scene();
    const run = await here.makeRun({ status: 'RUNNING' });
    const done = await here.move(run, 'complete', { message: 'won', resultJson: '1' });
    const open = await here.move(run, 'reopen');
    expect(open).toMatchObject({ status: 'RUNNING', statusMessage: '', resultJson: '', endTime: undefined });
    expect(open.startTime).toBe(run.startTime);
    const failed = await here.move(run, 'fail', { message: 'lost' });
    expect(failed).toMatchObject({ status: 'FAILED', statusMessage: 'lost', resultJson: '' });
    expect((failed.endTime ?? 0n) > (done.endTime ?? 0n)).toBe(true);
    const pending = await here.move(await here.makeRun(), 'cancel');
    expect(pending.startTime).toBeUndefined();
    expect((await here.move(pending, 'reopen')).startTime).toBeDefined();
  });

  it('L5: a terminal verb again with the same result writes nothing; with another it is RESULT_CONFLICT', async () => {
    const here = scene();
    const run = await here.makeRun({ status: 'RUNNING' });
    const details = { message: 'won', resultJson: '{"a":1}' };
    const done = await here.move(run, 'complete', details);
    const before = await dumpNamespace(on.sql, here.namespace);
    expect(await here.move(run, 'complete', details)).toEqual(done);
    for (const other of [{ ...details, message: 'Won' }, { ...details, resultJson: '{"a": 1}' }, {}])
      expect(await refusalOf(here.move(run, 'complete', other))).toMatchObject({
        reason: 'RESULT_CONFLICT',
        metadata: { status: 'COMPLETED', verb: 'complete' },
      });
    expect(await dumpNamespace(on.sql, here.namespace)).toBe(before);
  });

  it('L5: a repeated end is compared with the first end, whatever the row contains since', async () => {
    const here = scene();
    const run = await here.makeRun({ status: 'RUNNING' });
    await here.move(run, 'complete', { message: 'won' });
    await here.store.updateRun(here.namespace, run.id, { statusMessage: 'looked at' });
    expect(await here.move(run, 'complete', { message: 'won' })).toMatchObject({ statusMessage: 'looked at' });
    const other = await refusalOf(here.move(run, 'complete', { message: 'looked at' }));
    expect(other.reason).toBe('RESULT_CONFLICT');
  });

  it('L5: a verb that would lead to RUNNING again succeeds without effect, whatever it contains', async () => {
    const here = scene();
    const run = await here.makeRun({ status: 'RUNNING' });
    expect(await here.move(run, 'start', { message: 'again', phase: 'x' })).toEqual(run);
    expect(await here.move(run, 'reopen')).toEqual(run);
  });

  it('L5: of twenty concurrent completions with different results one succeeds, and the history has it once', async () => {
    const here = scene();
    const run = await here.makeRun({ status: 'RUNNING' });
    const results = await Promise.allSettled(
      Array.from({ length: 20 }, (_, i) => here.move(run, 'complete', { resultJson: `${i}` })),
    );
    const won = results.flatMap((each) => (each.status === 'fulfilled' ? [each.value.resultJson] : []));
    expect(won).toHaveLength(1);
    for (const each of results)
      if (each.status === 'rejected') expect(each.reason).toMatchObject({ reason: 'RESULT_CONFLICT' });
    expect((await here.run(run.id)).resultJson).toBe(won[0]);
    expect(await here.history('RUN', run)).toHaveLength(2);
  });

  it('L5: of twenty concurrent verbs each that changes the status is recorded once, in a valid order', async () => {
    const here = scene();
    const run = await here.makeRun({ status: 'RUNNING' });
    await Promise.allSettled(
      Array.from({ length: 20 }, (_, i) => here.move(run, i % 2 === 0 ? 'pause' : 'resume', { message: `${i}` })),
    );
    const history = await here.history('RUN', run);
    let status: Status | undefined;
    for (const [i, change] of history.entries()) {
      expect(change.ordinal).toBe(BigInt(i));
      expect(change.oldStatus).toBe(status);
      status = change.newStatus;
    }
    expect(await here.run(run.id)).toMatchObject({ status, revision: BigInt(history.length) });
  });

  it('L2: the end of a run changes neither its branches nor its other trajectories', async () => {
    const here = scene();
    const run = await here.makeRunWith(['a'], { status: 'RUNNING' });
    const other = await here.create({ runId: run.id });
    const { run: branch } = await here.branchOff(run, 0n);
    await here.move(run, 'fail');
    expect(await here.get(other.id)).toMatchObject({ status: 'RUNNING' });
    expect(await here.run(branch.id)).toEqual(branch);
  });

  it('L5, M2: a StatusChange records the progress: unset without a plan, 0 at creation, 100 when COMPLETED', async () => {
    const here = scene();
    const bare = await here.makeRun({ status: 'RUNNING' });
    await here.move(bare, 'pause');
    await here.move(bare, 'complete');
    const percents = async (run: Run) => (await here.history('RUN', run)).map(({ progressPercent }) => progressPercent);
    expect(await percents(bare)).toEqual([undefined, undefined, 100]);
    const planned = await here.makeRun({ plan: substepPlan(2, 4) });
    await here.move(planned, 'start');
    const stage = await here.stage(planned, { status: 'RUNNING' });
    await here.store.updateStage(here.namespace, stage.id, { completedSubsteps: 2n });
    await here.move(planned, 'fail');
    expect(await percents(planned)).toEqual([0, 0, 25]);
  });

  it('terminal statuses have an end time, and only these', async () => {
    const here = scene();
    for (const status of STATUSES) {
      const run = await runIn(here, status);
      expect(run.endTime !== undefined).toBe(isTerminal(status));
    }
  });
});
