import fc from 'fast-check';
import { beforeAll, describe, expect, it } from 'vitest';
import { isKept } from '../../src/domain/step.ts';
import { ownBegin, type Trajectory, type TrajectoryRef } from '../../src/domain/trajectory.ts';
import type { OwnedStep, StepCursor, StepFilter, StepSort } from '../../src/store/contract/step.ts';
import { dose } from '../support/dose.ts';
import { newState, stateRef, wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { RunScene } from './run_scene.ts';

const { POSITIVE_INFINITY: INFINITE } = Number;

/** Few values, so that many steps have the same. */
const REWARDS = [undefined, Number.NaN, -INFINITE, -2, -0, 0, 0.5, 1, 7, INFINITE];

const METRIC = 'score';

const PHASE = ['phase', 'träin'] as const;
/** A key and a value that an SQL or JSON path could mistake for something else. */
const ODD = ['a"=.\\b', '["phase","träin"]'] as const;

/** A label that few steps have. */
const AT = ['at', '7'] as const;

/** More than the trajectories and the stored segments that the first statements of a list look into. */
const SMALL_TRAJECTORIES = 70;
const SMALL_STEPS = 16;
const SINGLE_STEPS = 90;

type Scope = 'run' | 'experiment' | 'task' | 'root' | 'branch' | 'leaf' | 'copies';

interface Query {
  readonly scope: Scope;
  readonly by: StepSort['by'];
  readonly descending: boolean;
  readonly limit: number;
  readonly filter: {
    readonly minReward?: number;
    readonly maxReward?: number;
    readonly terminalOnly?: boolean;
    readonly hasState?: string | true;
    readonly anyOfStates?: readonly string[];
    readonly labels?: ReadonlyMap<string, string>;
    readonly fromTime?: number;
    readonly toTime?: number;
  };
}

const BOUND = fc.constantFrom(-INFINITE, -1, 0, 1, INFINITE);
const QUERY: fc.Arbitrary<Query> = fc.record({
  scope: fc.constantFrom<Scope>('run', 'experiment', 'task', 'root', 'branch', 'leaf', 'copies'),
  by: fc.constantFrom('REWARD', 'TIME', 'NUMBER', 'METRIC'),
  descending: fc.boolean(),
  limit: fc.constantFrom(1, 2, 3, 7, 40, 150, 1000),
  filter: fc.record(
    {
      minReward: BOUND,
      maxReward: BOUND,
      terminalOnly: fc.boolean(),
      hasState: fc.constantFrom<true | string>(true, 'env', 'ENV', 'late', 'none'),
      anyOfStates: fc.constantFrom(['env', 'none'], ['env', 'agent'], ['agent', 'late'], ['agent']),
      labels: fc.constantFrom(
        new Map([PHASE]),
        new Map([PHASE, ODD]),
        new Map([['phase', 'odd']]),
        new Map([AT, PHASE]),
        new Map([ODD, AT]),
        new Map([['none', '']]),
      ),
      fromTime: fc.double({ min: 0, max: 1, noNaN: true }),
      toTime: fc.double({ min: 0, max: 1, noNaN: true }),
    },
    { requiredKeys: [] },
  ),
});

describeStore('lists of steps compared with a naive sort', (on) => {
  const state = newState('state');

  /** Draws the same numbers on every engine and in every run. */
  function steps(drawn: Random, from: bigint, count: number) {
    return Array.from({ length: count }, (_, i) => {
      const states = ['env', 'agent'].filter(() => drawn.below(6) === 0).map((name) => stateRef(state, name));
      const [terminated, truncated] = [drawn.below(12) === 0, drawn.below(15) === 0];
      const reward = REWARDS[drawn.below(REWARDS.length)];
      const score = REWARDS[drawn.below(REWARDS.length)];
      const metrics = new Map(score === undefined ? [] : [[METRIC, score]]);
      const labels = new Map<string, string>(
        [drawn.below(3) === 0 ? PHASE : (['phase', 'odd'] as const), ODD].slice(drawn.below(3)),
      );
      labels.set('at', `${(from + BigInt(i)) % 45n}`);
      return wordStep(from + BigInt(i), `${i}`, { reward, terminated, truncated, states, metrics, labels });
    });
  }

  let scene: RunScene;
  let of: Readonly<Record<Scope, StepFilter['of']>>;
  /** All steps of each scope, in order of trajectory and number. */
  let all: Readonly<Record<Scope, readonly OwnedStep[]>>;
  let times: readonly bigint[];
  let long: Trajectory;
  /** The last is merged first: by the last query of the usual dose, each of many steps has been merged. */
  let unmerged: TrajectoryRef[];
  let unscored: ReadonlySet<bigint>;

  beforeAll(async () => {
    scene = new RunScene(on.store);
    const drawn = new Random();
    const { id: experimentId } = await scene.experiment();
    const run = await scene.makeRunWith([], { experiment: { id: experimentId } });
    const fields = { runId: run.id, taskId: 'task' };
    long = await scene.create({ ...fields, scoredMetrics: [METRIC] });
    let writerEpoch: bigint | undefined;
    for (let i = 0; i < SINGLE_STEPS; i += 1) {
      if (i % 40 === 20) writerEpoch = await scene.open(long, `writer ${i}`, writerEpoch);
      await scene.append(long, steps(drawn, BigInt(i), 1), { states: [state], writerEpoch });
    }
    await scene.append(long, steps(drawn, BigInt(SINGLE_STEPS), 100), { states: [state], writerEpoch });
    await scene.append(long, steps(drawn, BigInt(SINGLE_STEPS + 100), 200), { states: [state], writerEpoch });
    const small = await Promise.all(
      Array.from({ length: SMALL_TRAJECTORIES }, (_, i) =>
        scene.create({ experimentId, taskId: 'task', scoredMetrics: i % 2 === 0 ? ['other', METRIC] : ['other'] }),
      ),
    );
    for (let from = 0; from < SMALL_STEPS; from += 1) {
      const batches = small.map((each) => scene.batch(each, steps(drawn, BigInt(from), 1), { states: [state] }));
      await scene.store.append(batches, 'bounded');
    }
    const branch = await scene.branch(long, 200n);
    await scene.append(branch, steps(drawn, 201n, 20), { states: [state] });
    const trimmed = await scene.branch(branch, 210n);
    await scene.append(trimmed, steps(drawn, 211n, 12), { states: [state] });
    const leaf = await scene.branch(trimmed, 214n);
    await scene.append(leaf, steps(drawn, 215n, 5), { states: [state] });
    await scene.delete(trimmed, 'KEEP_SHARED');
    const copies = [
      await scene.branch(leaf, 216n, { taskId: 'copies' }),
      await scene.branch(branch, 220n, { taskId: 'copies' }),
    ];
    await scene.append(copies[0]!, steps(drawn, 217n, 3), { states: [state] });
    const ofCopy = await scene.branch(copies[0]!, 218n);
    await scene.append(ofCopy, steps(drawn, 219n, 3), { states: [state] });
    await scene.delete(small[5]!);
    for (const each of [long, branch, ...small.slice(6, 12)]) await attachAndPrune(drawn, each);
    await setClocksBack();

    unscored = new Set(small.filter((_, i) => i % 2 === 1).map(({ ref }) => ref.key));
    const large = [long, branch, leaf, ...copies, ofCopy];
    unmerged = [...small.slice(20), ...large, ...small.slice(0, 20)].map(({ ref }) => ref);
    const lineages = { root: long, branch, leaf };
    of = {
      run: { runId: run.id },
      experiment: { experimentId },
      task: { taskId: 'task' },
      copies: { taskId: 'copies' },
      ...(Object.fromEntries(
        await Promise.all(
          Object.entries(lineages).map(async ([name, each]) => [
            name,
            { tree: each.ref.tree, lineage: await scene.lineage(each) },
          ]),
        ),
      ) as Record<'root' | 'branch' | 'leaf', StepFilter['of']>),
    };
    const own = async (each: Trajectory) => (await scene.steps(each)).filter(({ owner }) => owner.key === each.ref.key);
    const ofCopies = (await Promise.all([...copies, ofCopy].map(own))).flat();
    const ofTask = (await Promise.all([long, branch, leaf].map(own))).flat();
    // Copies are of the same run.
    const ofRun = [...ofTask, ...ofCopies];
    const ofSmall = (await Promise.all(small.filter((_, i) => i !== 5).map(own))).flat();
    all = {
      run: ofRun,
      experiment: [...ofRun, ...ofSmall],
      task: [...ofTask, ...ofSmall],
      copies: distinct((await Promise.all([...copies, ofCopy].map((each) => scene.steps(each)))).flat()),
      root: await scene.steps(long),
      branch: await scene.steps(branch),
      leaf: await scene.steps(leaf),
    };
    times = [...new Set(all.experiment.map(({ step }) => step.commitTime))].sort((a, b) => Number(a - b));
  });

  /** Attaches states, and prunes some of all states. Merges write those that were attached into their steps. */
  async function attachAndPrune(drawn: Random, { id, ref }: Trajectory): Promise<void> {
    const to = await scene.get(id);
    const sent = { name: 'late', digest: state.digest, mediaType: '', data: state.data };
    const attaching = { trajectoryId: id, uid: undefined, writerEpoch: to.writerEpoch || undefined, ...sent };
    for (let stepNumber = ownBegin(to); stepNumber < to.nextStepNumber; stepNumber += BigInt(1 + drawn.below(9))) {
      const kind = drawn.below(3);
      if (kind < 2) await scene.store.attachState(scene.caller, { ...attaching, stepNumber });
      const pruned = { stepNumber, names: kind === 1 ? ['late'] : ['env'], mediaTypes: [] };
      if (kind > 0) await scene.store.pruneStates(scene.namespace, ref, [pruned]);
    }
  }

  /** As if clocks had been set back between appends. The store must not know the segments from before. */
  async function setClocksBack(): Promise<void> {
    for (let part = 1; part < 5; part += 1) {
      const time = on.sql.earlier('commit_time', part * 10);
      await on.sql.rows(`update segments set commit_time = ${time} where first_step_number % 5 = ${part}`);
    }
    await on.reopen();
    scene = new RunScene(on.store, scene.namespace);
  }

  it('RD4, W11: every filter and order returns the same steps as a naive sort, in pages of any size', async () => {
    await fc.assert(
      fc.asyncProperty(QUERY, async (query) => {
        const { scope, limit } = query;
        await mergeNext();
        const where = { of: of[scope], inherited: scope === 'copies', ...filterOf(query, times) };
        const sort = { by: query.by, metric: METRIC, descending: query.descending };
        expect((await paged(where, sort, limit)).map(nameOf)).toEqual(
          naive(
            all[scope].filter(({ owner }) => query.by !== 'METRIC' || !unscored.has(owner.key)),
            query,
            times,
          ).map(nameOf),
        );
      }),
      { numRuns: dose(50, 300), seed: 14 },
    );
  });

  describe('while steps are appended', () => {
    it.each([true, false])(
      'RD4: a list by reward has each earlier step once, in pages (descending: %s)',
      async (descending) => {
        const { experiment } = all;
        const before = new Set(experiment.map(nameOf));
        const growing = await scene.create({ experimentId: (of.experiment as { experimentId: string }).experimentId });
        let next = 0n;
        const found = await paged({ of: of.experiment }, { by: 'REWARD', descending }, 60, async () => {
          if (next === 60n) return;
          const rewards = [next % 2n === 0n ? Number(next) : -Number(next), undefined, 0.25];
          await scene.append(
            growing,
            rewards.map((reward, i) => wordStep(next + BigInt(i), 'new', { reward })),
          );
          next += 3n;
          await mergeNext();
        });
        const names = found.map(nameOf).filter((name) => before.has(name));
        expect(names).toHaveLength(before.size);
        expect(new Set(names)).toEqual(before);
        expect(new Set(found.map(nameOf)).size).toBe(found.length);
        await scene.delete(growing);
      },
    );
  });

  /** Merges the rows of one more trajectory, so that early queries see single rows and late ones merged rows. */
  async function mergeNext() {
    const next = unmerged.pop();
    for (let left = next === undefined ? [] : [{ ref: next, rest: true }]; left.length > 0; ) {
      left = await scene.store.mergeSteps(left);
    }
  }

  async function paged(where: StepFilter, sort: StepSort, limit: number, between?: () => Promise<void>) {
    const found: OwnedStep[] = [];
    for (let after: StepCursor | undefined; ; ) {
      const page = { limit, after, maxBytes: 1e6 };
      const { steps: some } = await scene.store.listSteps(scene.namespace, where, sort, page, 'BASIC');
      expect(some.length).toBeLessThanOrEqual(limit);
      found.push(...some);
      const last = some.at(-1);
      if (last === undefined) return found;
      const { stepNumber, reward, commitTime, metrics } = last.step;
      after = { key: last.owner.key, stepNumber, reward, commitTime, metric: metrics.get(METRIC) };
      await between?.();
    }
  }
});

function distinct(steps: readonly OwnedStep[]): OwnedStep[] {
  return [...new Map(steps.map((step) => [nameOf(step), step])).values()];
}

/** What identifies a step, and the values that it has of its commit. */
function nameOf({ owner, step }: OwnedStep): string {
  return `${owner.key}/${step.stepNumber} ${step.writerEpoch} ${step.commitTime}`;
}

function timeAt(times: readonly bigint[], part: number | undefined): bigint | undefined {
  return part === undefined ? undefined : times[Math.floor(part * (times.length - 1))];
}

function filterOf({ filter }: Query, times: readonly bigint[]): Omit<StepFilter, 'of'> {
  const { fromTime, toTime, ...others } = filter;
  const [commitTimeFrom, commitTimeTo] = [timeAt(times, fromTime), timeAt(times, toTime)];
  return {
    ...others,
    ...(commitTimeFrom === undefined ? {} : { commitTimeFrom }),
    ...(commitTimeTo === undefined ? {} : { commitTimeTo }),
  };
}

function naive(steps: readonly OwnedStep[], query: Query, times: readonly bigint[]): OwnedStep[] {
  const { filter, by, descending } = query;
  const { minReward, maxReward } = filter;
  const [from, to] = [timeAt(times, filter.fromTime), timeAt(times, filter.toTime)];
  const matching = steps.filter(({ step }) => {
    const reward = step.reward ?? Number.NaN;
    const names = step.states.filter(isKept).map(({ name }) => name);
    return (
      (by !== 'METRIC' || !Number.isNaN(step.metrics.get(METRIC) ?? Number.NaN)) &&
      (minReward === undefined || reward >= minReward) &&
      (maxReward === undefined || reward <= maxReward) &&
      (filter.terminalOnly !== true || step.terminated || step.truncated) &&
      (filter.hasState === undefined || names.some((name) => filter.hasState === true || name === filter.hasState)) &&
      (filter.anyOfStates === undefined || names.some((name) => filter.anyOfStates?.includes(name))) &&
      [...(filter.labels ?? [])].every(([key, value]) => step.labels.get(key) === value) &&
      (from === undefined || step.commitTime >= from) &&
      (to === undefined || step.commitTime < to)
    );
  });
  const isRanked = ({ step: { reward } }: OwnedStep) =>
    by !== 'REWARD' || (reward !== undefined && !Number.isNaN(reward));
  const sortValue = ({ step }: OwnedStep) => {
    if (by === 'NUMBER') return step.stepNumber;
    if (by === 'METRIC') return step.metrics.get(METRIC) ?? 0;
    return by === 'TIME' ? step.commitTime : (step.reward ?? 0);
  };
  const compare = (a: number | bigint, b: number | bigint) => (descending ? -1 : 1) * (a < b ? -1 : a > b ? 1 : 0);
  return matching.sort((a, b) => {
    if (isRanked(a) !== isRanked(b)) return isRanked(a) ? -1 : 1;
    const byValue = isRanked(a) ? compare(sortValue(a), sortValue(b)) : 0;
    return byValue || compare(a.owner.key, b.owner.key) || compare(a.step.stepNumber, b.step.stepNumber);
  });
}

/** Numbers that look random and are the same each time. */
class Random {
  #state = 14;

  below(end: number): number {
    this.#state = (Math.imul(this.#state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((this.#state / 2 ** 32) * end);
  }
}
