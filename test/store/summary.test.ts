import { randomUUID } from 'node:crypto';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { isTerminal } from '../../src/domain/lifecycle.ts';
import { type Attempt, type Rollout, rewardStatistics } from '../../src/domain/rollout.ts';
import type { Run } from '../../src/domain/run.ts';
import type { SummaryKey, SummaryRow } from '../../src/domain/summary.ts';
import { summaryOf } from '../../src/domain/summary.ts';
import type { NewRollout } from '../../src/store/contract/rollout.ts';
import type { SummaryFilter } from '../../src/store/contract/summary.ts';
import { dose } from '../support/dose.ts';
import { makeStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { NO_RESULT, RolloutScene, tokenOf } from './rollout_scene.ts';
import { refusalOf } from './scene.ts';
import { statementsOfWarm } from './statement_count.ts';

const NO_FILTER: SummaryFilter = {
  runs: [],
  experimentId: undefined,
  stageKinds: [],
  taskIds: [],
  runLabels: new Map(),
  labels: new Map(),
};

/** Known values of a rollout and its run, apart from the rollout's own fields. */
interface Seen {
  readonly rollout: Rollout;
  readonly attempts: readonly Attempt[];
  readonly run: Run;
  readonly kind: string;
}

describeStore('summaries', (on) => {
  const scene = () => new RolloutScene(on.store);
  const summarize = (here: RolloutScene, by: readonly SummaryKey[], filter: Partial<SummaryFilter> = {}) =>
    here.store.summarize(here.namespace, { ...NO_FILTER, ...filter }, by);
  const byValues = (rows: readonly SummaryRow[]) =>
    new Map(rows.map((row) => [JSON.stringify(row.values), row] as const));
  const reason = (call: Promise<unknown>) => refusalOf(call).then((refusal) => refusal.reason);

  /** A run with stages of two kinds. */
  const furnish = async (here: RolloutScene, fields: Parameters<typeof here.makeRun>[0] = {}) => {
    const run = await here.makeRun({ status: 'RUNNING', ...fields });
    const [train, evaluation] = [
      await here.stage(run, { status: 'RUNNING' }),
      await here.stage(run, { status: 'RUNNING', kind: 'EVAL' }),
    ];
    return { run, train, evaluation };
  };

  const does = fc.record({
    stage: fc.nat(3),
    group: fc.nat(1),
    task: fc.constantFrom('', 'open', 'close'),
    model: fc.constantFrom('', 's3://one', 's3://two'),
    labels: fc.constantFrom({}, { model: 'big' }, { model: 'big', 'odd "key"': 'x' }, { 'odd "key"': '' }),
    fate: fc.constantFrom('wait', 'live', 'COMPLETED', 'COMPLETED', 'FAILED', 'CANCELLED'),
    reward: fc.constantFrom(undefined, Number.NaN, 0, 1, -2.5, 1e9, 1e9 + 0.25),
    success: fc.constantFrom(undefined, true, false),
    tokens: fc.constantFrom(undefined, Number.NaN, 0, 1200, 0.5),
    turns: fc.nat(3),
  });

  it('M3: for every grouping of rollouts, the summary equals counting them one by one', async () => {
    const dimension = fc.constantFrom<SummaryKey>(
      ...(['TASK', 'RUN', 'EXPERIMENT', 'STAGE_KIND', 'MODEL_URI', 'NUMBER'] as const),
      { label: 'model' },
      { label: 'odd "key"' },
      { label: 'none' },
    );
    const by = fc.uniqueArray(dimension, { maxLength: 4 });
    const cases = fc.tuple(
      fc.array(does, { minLength: 1, maxLength: 24 }),
      fc.array(by, { minLength: 3, maxLength: 3 }),
    );
    await fc.assert(
      fc.asyncProperty(cases, async ([deeds, dimensions]) => {
        const here = scene();
        const seen = await live(here, deeds);
        for (const keys of [[], ...dimensions]) {
          const found = byValues(await summarize(here, keys));
          const naive = Map.groupBy(seen, (each) => JSON.stringify(keys.map((key) => valueIn(each, key))));
          expect([...found.keys()].sort()).toEqual([...naive.keys()].sort());
          for (const [values, rollouts] of naive) expectCounted(found.get(values), rollouts, seen);
        }
      }),
      { numRuns: dose(4, 20) },
    );
  });

  /** Creates rollouts in two runs, and brings each to its outcome. */
  const live = async (
    here: RolloutScene,
    deeds: readonly (typeof does extends fc.Arbitrary<infer T> ? T : never)[],
  ) => {
    for (const task of ['open', 'close']) await here.task(task);
    const labels = new Map([['model', 'small']]);
    const [one, other] = [await furnish(here, { labels }), await furnish(here)];
    const stages = [one.train, one.evaluation, other.train, other.evaluation];
    for (const [i, deed] of deeds.entries()) {
      const stage = stages[deed.stage]!;
      const fields: Partial<NewRollout> = {
        groupNumber: BigInt(deed.group),
        number: BigInt(i),
        taskId: deed.task,
        modelUri: deed.model,
        labels: new Map(Object.entries(deed.labels)),
        onSuccess: 'CONTINUE',
      };
      const [made] = await here.makeRollouts(stage, [fields]);
      if (deed.fate === 'wait') {
        if (i % 2 === 0) continue;
        await here.cancel(made!.rolloutId);
        continue;
      }
      const found = await here.claims({ stageId: stage.id, count: 100 });
      const claim = found.find(({ rollout }) => rollout.id === made!.rolloutId)!;
      for (const each of found)
        if (each !== claim) await here.release({ id: each.rollout.id, attempt: each.rollout.attempt });
      const steps = Array.from({ length: deed.turns + 1 }, (_, turn) => makeStep(BigInt(turn)));
      await here.append(claim.trajectory, steps);
      if (deed.turns > 0) await here.start(claim);
      const result = { ...NO_RESULT, reward: deed.reward, success: deed.success };
      const metrics = new Map(deed.tokens === undefined ? [['other', 3]] : [['tokens', deed.tokens]]);
      if (deed.fate === 'COMPLETED') await here.complete(claim, { result, metrics });
      if (deed.fate === 'FAILED') await here.fail(claim, { result, metrics });
      if (deed.fate === 'CANCELLED') await here.cancel(made!.rolloutId);
    }
    const seen: Seen[] = [];
    for (const { run, train } of [one, other]) {
      for (const rollout of await here.rollouts({ runId: run.id })) {
        const { attempts } = await here.record(rollout.id);
        seen.push({ rollout, attempts, run, kind: rollout.stage.id === train.id ? 'TRAIN_STEP' : 'EVAL' });
      }
    }
    return seen;
  };

  const valueIn = ({ rollout, run, kind }: Seen, key: SummaryKey): string => {
    if (key === 'TASK') return rollout.taskId;
    if (key === 'RUN') return run.id;
    if (key === 'EXPERIMENT') return run.experiment.id;
    if (key === 'STAGE_KIND') return kind;
    if (key === 'MODEL_URI') return rollout.modelUri;
    if (key === 'NUMBER') return `${rollout.number}`;
    return rollout.labels.get(key.label) ?? run.labels.get(key.label) ?? '';
  };

  const expectCounted = (row: SummaryRow | undefined, seen: readonly Seen[], all: readonly Seen[]) => {
    const rollouts = seen.map(({ rollout }) => rollout);
    const ended = rollouts.filter(({ status }) => isTerminal(status));
    const having = (...statuses: string[]) => BigInt(rollouts.filter(({ status }) => statuses.includes(status)).length);
    const completed = ended.filter(({ status, success }) => status === 'COMPLETED' && success !== undefined);
    const rewards = ended.flatMap(({ reward }) => (reward === undefined || Number.isNaN(reward) ? [] : [reward]));
    const sorted = rewards.toSorted((a, b) => a - b);
    const { std } = rewardStatistics(rewards);
    const tokens = ended.flatMap(({ metrics }) => {
      const count = metrics.get('tokens');
      return count === undefined || Number.isNaN(count) ? [] : [count];
    });
    const timed = seen.flatMap(({ rollout, attempts }) => (isTerminal(rollout.status) ? attempts.slice(-1) : []));
    const durations = timed.map(({ claimTime, endTime }) => Number(endTime! - claimTime) / 1e9);
    const sum = (all: readonly number[]) => all.reduce((total, each) => total + each, 0);
    expect(row).toMatchObject({
      pending: having('PENDING'),
      live: having('INITIALIZING', 'RUNNING'),
      completed: having('COMPLETED'),
      failed: having('FAILED'),
      cancelled: having('CANCELLED'),
      judged: having('FAILED') + BigInt(completed.length),
      successes: BigInt(completed.filter(({ success }) => success).length),
      rewards: {
        count: BigInt(rewards.length),
        sum: expect.closeTo(sum(rewards), 4),
        min: sorted[0] ?? 0,
        max: sorted.at(-1) ?? 0,
        squares: closeTo((std ?? 0) ** 2 * Math.max(0, rewards.length - 1)),
        median:
          rewards.length === 0 ? 0 : closeTo((sorted[(rewards.length - 1) >> 1]! + sorted[rewards.length >> 1]!) / 2),
      },
      turns: ended.reduce((total, { turns }) => total + turns, 0n),
      durations: { count: BigInt(timed.length), seconds: expect.closeTo(sum(durations), 1) },
      queueTimes: { count: BigInt(timed.length), seconds: expect.any(Number) },
      tokens: { count: BigInt(tokens.length), sum: expect.closeTo(sum(tokens), 6) },
    });
    expect(byText(row!.tasks)).toEqual(byText(groupsOf(seen, all)));
  };

  const byText = (tasks: SummaryRow['tasks']) => tasks.map((task) => Object.entries(task).join(' ')).sort();

  /** CONTINUE groups of each task, with all their siblings judged. */
  const groupsOf = (seen: readonly Seen[], all: readonly Seen[]): SummaryRow['tasks'] => {
    const known = ({ status, success }: Rollout) =>
      status === 'FAILED' || (status === 'COMPLETED' && success !== undefined);
    const counts = (group: bigint) =>
      all.filter(({ rollout }) => rollout.group.key === group).every(({ rollout }) => known(rollout));
    const ofTasks = Map.groupBy(
      seen.map(({ rollout }) => rollout).filter(({ taskId }) => taskId !== ''),
      ({ taskId }) => taskId,
    );
    return [...ofTasks.values()].map((rollouts) => {
      const counted = rollouts.filter(({ group }) => counts(group.key));
      const number = (some: readonly Rollout[]) => BigInt(new Set(some.map(({ group }) => group.key)).size);
      return {
        groups: number(counted),
        trials: BigInt(counted.length),
        successes: BigInt(counted.filter(({ status, success }) => status === 'COMPLETED' && success).length),
        unfinished: number(rollouts.filter(({ group }) => !counts(group.key))),
        stopping: [],
      };
    });
  };

  it('M3: duration, queue time, start time and metrics are those of the last attempt; failed attempts before it do not count', async () => {
    const here = scene();
    const { train } = await furnish(here);
    const [id = '', cancelled = ''] = await here.queue(train, 2, { modelUri: 'tried again' });
    const tokens = (attempt: number, count: number) =>
      here.store.updateRollout(here.caller, id, attempt, { metrics: new Map([['tokens', count]]) });
    const [first, other] = await here.claims({ count: 2 });
    await here.start(first!);
    await tokens(1, 7);
    await here.release(tokenOf(first!));
    await here.release(tokenOf(other!));
    expect((await here.rollout(id)).startTime, 'while PENDING').toBeUndefined();
    const second = await here.claimOne();
    expect(second.rollout).toMatchObject({ id, startTime: undefined, metrics: new Map() });
    await tokens(2, 5);
    await here.start(second);
    await here.complete(second);
    await here.cancel(cancelled);
    // As if the first attempt had lasted 4,000 s, the second 100 s, and the rollout had waited 30 s in between.
    const { key } = second.rollout;
    const shift = (number: number, column: string, seconds: number) =>
      on.sql.rows(
        `update attempts set ${column} = ${on.sql.earlier(column, seconds)} where rollout = ${key} and number = ${number}`,
      );
    await shift(1, 'claim_time', 5000);
    await shift(2, 'claim_time', 100);
    await shift(2, 'claimable_time', 130);
    const [row] = await summarize(here, [], { runs: [second.rollout.run.id] });
    const { attempts, rollout } = await here.record(id);
    expect(rollout.startTime).toBe(attempts[1]?.startTime);
    const spans = [attempts[1]!, (await here.record(cancelled)).attempts[0]!];
    const seconds = spans.reduce((total, { claimTime, endTime }) => total + Number(endTime! - claimTime) / 1e9, 0);
    expect(row?.durations).toEqual({ count: 2n, seconds: expect.closeTo(seconds, 1) });
    expect(seconds).toBeGreaterThan(100);
    expect(row?.queueTimes.count).toBe(2n);
    expect(row?.queueTimes.seconds).toBeGreaterThan(30);
    expect(row?.queueTimes.seconds).toBeLessThan(90);
    expect(row?.tokens).toEqual({ count: 1n, sum: 5 });
  });

  /** Equal to nine digits, or very close to 0. */
  const closeTo = (value: number) => ({
    asymmetricMatch: (other: unknown) => Math.abs(Number(other) - value) <= Math.max(1e-9, Math.abs(value) * 1e-9),
  });

  it('M3: 4 successes and 6 crashes are a success rate of 0.4, in summaries, groups and filters alike', async () => {
    const here = scene();
    const { train } = await furnish(here);
    const taskId = await here.task('open');
    await here.queue(train, 14, { taskId });
    const claims = await here.claims({ count: 12 });
    for (const claim of claims.slice(0, 4)) await here.complete(claim, { result: { ...NO_RESULT, success: true } });
    for (const claim of claims.slice(4, 9)) await here.fail(claim);
    // A rollout with a successful result, one without a verdict, one whose lease expired, one that was cancelled with a
    // verdict, and one that waits.
    await here.fail(claims[9]!, { result: { ...NO_RESULT, success: true } });
    await here.complete(claims[10]!);
    const overridden = { success: true, reason: '', actor: '' };
    await here.store.overrideValidation(here.caller, claims[11]!.rollout.id, undefined, overridden);
    await here.cancel(claims[11]!.rollout.id);
    const [row] = await summarize(here, []);
    expect(row).toMatchObject({ judged: 10n, successes: 4n, completed: 5n, failed: 6n, cancelled: 1n, pending: 2n });
    const { successRate, unjudged, passAt } = summaryOf(row!, [1]);
    expect([successRate?.value, unjudged, passAt[0]]).toMatchObject([
      0.4,
      1n,
      { estimate: undefined, groupsExcluded: 1n },
    ]);
    const [group] = await here.store.listGroups(here.namespace, train.id, { limit: 9, after: undefined }, 'BASIC');
    expect(group?.statistics).toMatchObject({ judged: 10n, successes: 4n });
    const listed = async (success: boolean) => (await here.rollouts({ stageId: train.id }, { success })).length;
    expect([await listed(true), await listed(false)]).toEqual([4, 6]);
  });

  it('M3: the spread of large numbers with small differences is precise', async () => {
    const here = scene();
    const { train } = await furnish(here);
    await here.queue(train, 3);
    for (const [i, claim] of (await here.claims({ count: 3 })).entries())
      await here.complete(claim, { result: { ...NO_RESULT, reward: 1e15 + i } });
    const [row] = await summarize(here, []);
    expect(row?.rewards).toEqual({ count: 3n, sum: 3e15 + 3, min: 1e15, max: 1e15 + 2, squares: 2, median: 1e15 + 1 });
    await here.queue(train, 3, { groupNumber: 1n, modelUri: 'near' });
    for (const [i, claim] of (await here.claims({ count: 3 })).entries())
      await here.complete(claim, { result: { ...NO_RESULT, reward: i === 0 ? 1e9 : 1e9 + 0.25 } });
    const near = byValues(await summarize(here, ['MODEL_URI'])).get('["near"]');
    expect(near?.rewards.squares).toEqual(closeTo(1 / 24));
  });

  it('W11: very large and infinite rewards and tokens cause no error on either engine', async () => {
    const here = scene();
    const { train } = await furnish(here);
    const ended = async (modelUri: string, rewards: readonly number[]) => {
      await here.makeRollouts(
        train,
        rewards.map((_, i) => ({ groupNumber: BigInt(modelUri.length), number: BigInt(i), modelUri })),
      );
      for (const [i, claim] of (await here.claims({ count: rewards.length })).entries()) {
        const reward = rewards[i]!;
        await here.complete(claim, { result: { ...NO_RESULT, reward }, metrics: new Map([['tokens', reward]]) });
      }
    };
    await ended('a', [1e308, 1e308, -1e308, 5]);
    await ended('bb', [Number.POSITIVE_INFINITY, 2]);
    await ended('ccc', [1, 2, 4]);
    const rows = byValues(await summarize(here, ['MODEL_URI']));
    const [a, b, c] = ['["a"]', '["bb"]', '["ccc"]'].map((values) => rows.get(values)!);
    expect(a?.rewards).toMatchObject({ count: 4n, min: -1e308, max: 1e308, median: 5e307 });
    expect(b?.rewards).toMatchObject({
      count: 2n,
      sum: Number.POSITIVE_INFINITY,
      max: Number.POSITIVE_INFINITY,
      min: 2,
    });
    expect(b?.tokens).toEqual({ count: 2n, sum: Number.POSITIVE_INFINITY });
    expect(c?.rewards).toMatchObject({ count: 3n, sum: 7, median: 2, squares: closeTo(14 / 3) });
  });

  it('F-49, M3: CANCEL_PENDING groups are evaluated by their siblings in queue order, completely, whatever the filters', async () => {
    const here = scene();
    const { train } = await furnish(here);
    const won = { siblings: 3n, firstSuccess: 1n, firstUnknown: 2n };
    const cut = { siblings: 3n, firstSuccess: undefined, firstUnknown: 2n };
    for (const [i, taskId] of ['won', 'lost', 'cut'].entries()) {
      await here.task(taskId);
      const group = { groupNumber: BigInt(i), taskId, onSuccess: 'CANCEL_PENDING' as const };
      // The first in the queue has the highest priority.
      await here.makeRollouts(train, [
        { ...group, number: 0n },
        { ...group, number: 1n, priority: 7, labels: new Map([['first', 'yes']]) },
        { ...group, number: 2n },
      ]);
      const claim = await here.claimOne({ taskIds: [taskId] });
      expect(claim.rollout.number).toBe(1n);
      await here.complete(claim, { result: { ...NO_RESULT, success: taskId === 'won' } });
    }
    // Cancelled by a person, not by a success.
    for (const rollout of await here.rollouts({ stageId: train.id }, { taskId: 'cut', statuses: ['PENDING'] }))
      await here.cancel(rollout.id);
    const none = { groups: 0n, trials: 0n, successes: 0n, unfinished: 0n };
    for (const filter of [{}, { labels: new Map([['first', 'yes']]) }]) {
      const rows = byValues(await summarize(here, ['TASK'], filter));
      expect(rows.get('["won"]')?.tasks).toEqual([{ ...none, stopping: [{ groups: 1n, ...won }] }]);
      for (const values of ['["lost"]', '["cut"]'])
        expect(rows.get(values)?.tasks).toEqual([{ ...none, stopping: [{ groups: 1n, ...cut }] }]);
    }
    const [all] = await summarize(here, []);
    expect(all).toMatchObject({ cancelled: 4n, pending: 2n });
    const { passAt } = summaryOf(all!, [1, 2, 3]);
    expect(passAt.map(({ k, tasks, groupsExcluded }) => [k, tasks, groupsExcluded])).toEqual([
      [1, 3n, 0n],
      [2, 1n, 2n],
      [3, 1n, 2n],
    ]);
    expect(passAt[0]?.estimate?.value).toBeCloseTo(1 / 3, 12);
  });

  it('M3: a CONTINUE group counts once it has as many siblings as planned, and all are judged', async () => {
    const here = scene();
    const none = { groupsPerStage: 1, maxTurns: 5, substeps: 0, stages: 1 };
    const stagePlans = [
      { kind: 'EVAL' as const, ...none, groupSize: 9 },
      { kind: 'TRAIN_STEP' as const, ...none, groupSize: 3 },
    ];
    const { train } = await furnish(here, { plan: { concurrency: 1, stagePlans } });
    const taskId = await here.task('open');
    await here.queue(train, 2, { taskId });
    const tasks = async () => (await summarize(here, []))[0]?.tasks;
    const unfinished = [{ groups: 0n, trials: 0n, successes: 0n, unfinished: 1n, stopping: [] }];
    const [first, second] = await here.claims({ count: 2 });
    await here.complete(first!, { result: { ...NO_RESULT, success: true } });
    await here.fail(second!);
    expect(await tasks()).toEqual(unfinished);
    await here.makeRollouts(train, [{ groupNumber: 0n, number: 2n, taskId }]);
    expect(await tasks()).toEqual(unfinished);
    const third = await here.claimOne();
    await here.complete(third);
    expect(await tasks(), 'one is unjudged').toEqual(unfinished);
    await here.store.overrideValidation(here.caller, third.rollout.id, undefined, {
      success: false,
      reason: '',
      actor: '',
    });
    expect(await tasks()).toEqual([{ groups: 1n, trials: 3n, successes: 1n, unfinished: 0n, stopping: [] }]);
  });

  it('F-48: filters are combined with AND', async () => {
    const here = scene();
    const experiment = await here.experiment();
    const labels = new Map([['sweep', '7']]);
    const one = await furnish(here, { labels, experiment: { id: experiment.id } });
    const other = await furnish(here);
    await here.task('open');
    await here.queue(one.train, 3, { taskId: 'open', labels: new Map([['trial', '1']]) });
    await here.queue(one.evaluation, 2);
    await here.queue(other.train, 5, { labels: new Map([['sweep', '7']]) });
    const count = async (filter: Partial<SummaryFilter>) => (await summarize(here, [], filter))[0]?.pending ?? 0n;
    expect(await count({})).toBe(10n);
    expect(await count({ runs: [one.run.id] })).toBe(5n);
    expect(await count({ runs: [one.run.id, other.run.id], stageKinds: ['TRAIN_STEP'] })).toBe(8n);
    expect(await count({ experimentId: experiment.id })).toBe(5n);
    expect(await count({ experimentId: experiment.id, runs: [other.run.id] })).toBe(0n);
    expect(await count({ taskIds: ['open', 'none'] })).toBe(3n);
    expect(await count({ runLabels: labels })).toBe(5n);
    expect(await count({ labels })).toBe(5n);
    expect(await count({ labels: new Map([['trial', '2']]) })).toBe(0n);
    expect(await summarize(here, ['TASK'], { stageKinds: ['BASELINE'] })).toEqual([]);
    expect(await reason(count({ runs: [one.run.id, randomUUID()] }))).toBe('RUN_NOT_FOUND');
    expect(await reason(count({ experimentId: randomUUID() }))).toBe('EXPERIMENT_NOT_FOUND');
    expect(await reason(summarize(scene(), [], { runs: [one.run.id] }))).toBe('RUN_NOT_FOUND');
    expect(await summarize(scene(), [])).toEqual([]);
    await here.store.deleteRun(here.namespace, other.run.id, 'REFUSE');
    expect(await count({})).toBe(5n);
    expect(await reason(count({ runs: [other.run.id] }))).toBe('RUN_NOT_FOUND');
  });

  it('K-C6: a summary takes as many statements for two hundred rollouts of fifty tasks as for one', async () => {
    const here = scene();
    const { run, train } = await furnish(here);
    const cost = () =>
      statementsOfWarm(on.engine, () => summarize(here, ['TASK', { label: 'model' }], { runs: [run.id] }));
    await here.queue(train, 1);
    const one = await cost();
    expect(one).toBe(3);
    for (let i = 0; i < 50; i += 1) await here.task(`t${i}`);
    await here.makeRollouts(
      train,
      Array.from({ length: 200 }, (_, i) => ({ groupNumber: 1n, number: BigInt(i), taskId: `t${i % 50}` })),
    );
    for (const claim of await here.claims({ count: 30 })) await here.complete(claim);
    expect(await cost()).toBe(one);
  });
});
