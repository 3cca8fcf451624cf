import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { isTerminal, STATUSES, type Status } from '../../src/domain/lifecycle.ts';
import {
  type OpenStageTally,
  type Progress,
  progressOf,
  type RunTally,
  type StageEnd,
  stageEndOf,
} from '../../src/domain/progress.ts';
import { type Plan, STAGE_KINDS, type StageKind, type StagePlan } from '../../src/domain/run.ts';

/** A run as a list of stages with their rollouts: its counts are computed here in a simple way. */
interface StageOf {
  readonly kind: StageKind;
  readonly status: Status;
  readonly substeps: number;
  readonly totalSubsteps?: number | undefined;
  readonly rollouts: readonly { readonly turns: number; readonly ended: boolean; readonly untried?: true }[];
  /** For a FAILED or CANCELLED stage. Undefined: the expected count in its state at the end. */
  readonly end?: StageEnd;
}

interface RunOf {
  readonly status: Status;
  readonly plan: Plan | undefined;
  readonly stages: readonly StageOf[];
  readonly turnSeconds?: number | undefined;
  readonly substepSeconds?: number | undefined;
}

function count<T>(items: readonly T[], of: (item: T) => number): bigint {
  return BigInt(items.reduce((sum, item) => sum + of(item), 0));
}

function tally(run: RunOf): RunTally {
  const counted = tallyWithoutEnds(run);
  const kinds = counted.kinds.map((kind) => {
    const ends = run.stages
      .filter((each) => each.kind === kind.kind && isAbandoned(each))
      .map((each) => each.end ?? stageEndOf(openTally(each, 0), run.plan, counted));
    const sum = (of: (end: StageEnd) => number) => ends.reduce((total, end) => total + of(end), 0);
    const abandonedStages = {
      ...kind.abandonedStages,
      expectedTurns: sum((end) => end.expectedTurns),
      expectedSubsteps: sum((end) => end.expectedSubsteps),
      shares: sum((end) => end.share ?? 0),
      weightedShares: sum((end) => end.expectedTurns * (end.share ?? 0)),
    };
    return { ...kind, abandonedStages };
  });
  return { ...counted, kinds };
}

const isAbandoned = ({ status }: StageOf) => status === 'FAILED' || status === 'CANCELLED';

function tallyWithoutEnds({ stages, turnSeconds, substepSeconds }: RunOf): RunTally {
  const ofKind = (kind: StageKind) => stages.filter((stage) => stage.kind === kind);
  const having = (kind: StageKind, ...statuses: Status[]) =>
    count(ofKind(kind), ({ status }) => (statuses.includes(status) ? 1 : 0));
  const turnsOf = ({ rollouts }: StageOf) => Number(count(rollouts, ({ turns }) => turns));
  return {
    kinds: STAGE_KINDS.filter((kind) => ofKind(kind).length > 0).map((kind) => {
      const work = (ended: readonly StageOf[]) => ({
        rollouts: count(ended, ({ rollouts }) => rollouts.length),
        turns: count(ended, turnsOf),
        substeps: count(ended, ({ substeps }) => substeps),
      });
      const noEnds = { expectedTurns: 0, expectedSubsteps: 0, shares: 0, weightedShares: 0 };
      return {
        kind,
        pending: having(kind, 'PENDING'),
        open: having(kind, 'INITIALIZING', 'RUNNING', 'PAUSED'),
        completed: having(kind, 'COMPLETED'),
        failed: having(kind, 'FAILED'),
        cancelled: having(kind, 'CANCELLED'),
        completedStages: work(ofKind(kind).filter(({ status }) => status === 'COMPLETED')),
        abandonedStages: { ...work(ofKind(kind).filter(isAbandoned)), ...noEnds },
        rollouts: count(ofKind(kind), ({ rollouts }) => rollouts.length),
        terminalRollouts: terminalOf(ofKind(kind).flatMap(({ rollouts }) => rollouts)),
      };
    }),
    openStages: stages.filter(({ status }) => !isTerminal(status)).map(openTally),
    turns: { count: turnSeconds === undefined ? 0n : 10n, seconds: 10 * (turnSeconds ?? 0) },
    substeps: { count: substepSeconds === undefined ? 0n : 10n, seconds: 10 * (substepSeconds ?? 0) },
  };
}

function terminalOf(rollouts: StageOf['rollouts']): OpenStageTally['terminalRollouts'] {
  const ended = rollouts.filter((rollout) => rollout.ended);
  return {
    count: BigInt(ended.length),
    tried: count(ended, ({ untried }) => (untried === true ? 0 : 1)),
    turns: count(ended, ({ turns }) => turns),
  };
}

function openTally({ kind, status, substeps, totalSubsteps, rollouts }: StageOf, i: number): OpenStageTally {
  return {
    id: `stage-${i}`,
    kind,
    number: BigInt(i),
    status,
    phase: 'rollout',
    completedSubsteps: BigInt(substeps),
    totalSubsteps: totalSubsteps === undefined ? undefined : BigInt(totalSubsteps),
    rollouts: BigInt(rollouts.length),
    terminalRollouts: terminalOf(rollouts),
    liveTurns: rollouts.filter((rollout) => !rollout.ended).map(({ turns }) => BigInt(turns)),
  };
}

const progress = (run: RunOf): Progress => progressOf(run.status, run.plan, tally(run));

const NO_ROLLOUTS = { rolloutsExpected: 0n, rolloutsCreated: 0n, rolloutsTerminal: 0n };

const stagePlan = (plan: Partial<StagePlan>): StagePlan => ({
  kind: 'TRAIN_STEP',
  stages: 1,
  groupsPerStage: 0,
  groupSize: 0,
  maxTurns: 0,
  substeps: 0,
  ...plan,
});
const planOf = (concurrency: number, ...stagePlans: Partial<StagePlan>[]): Plan => ({
  concurrency,
  stagePlans: stagePlans.map(stagePlan),
});
const stage = (parts: Partial<StageOf> = {}): StageOf => ({
  kind: 'TRAIN_STEP',
  status: 'RUNNING',
  substeps: 0,
  rollouts: [],
  ...parts,
});
const rollouts = (number: number, turns: number, ended: boolean) =>
  Array(number).fill({ turns, ended }) as StageOf['rollouts'];
const running = (plan: Plan | undefined, stages: readonly StageOf[], parts: Partial<RunOf> = {}): RunOf => ({
  status: 'RUNNING',
  plan,
  stages,
  ...parts,
});

/** An example of M2: 80 rollouts of at most 20 turns, each of which ends at 8. */
const EIGHTY = { groupsPerStage: 10, groupSize: 8, maxTurns: 20 };
const HALFWAY = [...rollouts(40, 8, true), ...rollouts(8, 4, false)];

describe('M2: golden vectors', () => {
  it('M2: 80 rollouts: 40 finished at 8 turns, 8 live at turn 4, concurrency 8, 30 s per turn: 55 %, 1080 s', () => {
    const run = running(planOf(8, EIGHTY), [stage({ rollouts: HALFWAY })], { turnSeconds: 30 });
    expect(progress(run)).toEqual({
      percent: expect.closeTo(55, 9),
      remainingSeconds: 1080,
      turnsDone: 352n,
      turnsExpected: 640n,
      substepsDone: 0n,
      substepsExpected: 0n,
      meanTurnSeconds: 30,
      meanSubstepSeconds: undefined,
      kinds: [
        {
          kind: 'TRAIN_STEP',
          planned: 1n,
          created: 1n,
          open: 1n,
          completed: 0n,
          failed: 0n,
          cancelled: 0n,
          rolloutsExpected: 80n,
          rolloutsCreated: 48n,
          rolloutsTerminal: 40n,
        },
      ],
      openStages: [
        {
          id: 'stage-0',
          kind: 'TRAIN_STEP',
          number: 0n,
          status: 'RUNNING',
          phase: 'rollout',
          percent: expect.closeTo(55, 9),
          turnsDone: 352n,
          turnsExpected: 640n,
          substepsDone: 0n,
          substepsExpected: 0n,
          rolloutsExpected: 80n,
          rolloutsCreated: 48n,
          rolloutsLive: 8n,
          rolloutsTerminal: 40n,
        },
      ],
    });
  });

  it('M2: waiting rollouts are estimated like those not yet created, and more than planned are counted too', () => {
    const plan = planOf(1, { stages: 2, groupsPerStage: 2, groupSize: 2, maxTurns: 10 });
    const begun = rollouts(1, 5, true);
    const waiting = (made: number) =>
      progressOf('RUNNING', plan, {
        ...tally(running(plan, [stage({ rollouts: begun })])),
        openStages: [{ ...openTally(stage({ rollouts: begun }), 0), rollouts: BigInt(made) }],
      });
    expect(waiting(4)).toEqual({ ...waiting(1), openStages: [{ ...waiting(1).openStages[0], rolloutsCreated: 4n }] });
    expect(waiting(4)).toMatchObject({ turnsDone: 5n, turnsExpected: 40n });
    // Two are beyond the plan of the stage; the other stage is as planned.
    expect(waiting(6)).toMatchObject({ turnsExpected: 50n, openStages: [{ rolloutsExpected: 6n, rolloutsLive: 0n }] });
  });

  it('M2: before the first rollout has ended each is expected to take all its turns, and a turn 30 s', () => {
    const begun = running(planOf(8, EIGHTY), [stage({ rollouts: rollouts(8, 4, false) })]);
    expect(progress(begun)).toMatchObject({ percent: 2, turnsDone: 32n, turnsExpected: 1600n });
    expect(progress(begun).remainingSeconds).toBe((1568 * 30) / 8);
    const nothing = running(planOf(8, EIGHTY), []);
    expect(progress(nothing)).toMatchObject({ percent: 0, turnsExpected: 1600n, remainingSeconds: 6000 });
  });

  it('M2: a rollout with more turns than the mean is expected to take its own number', () => {
    const run = running(planOf(1, { groupsPerStage: 1, groupSize: 3, maxTurns: 20 }), [
      stage({
        rollouts: [
          { turns: 8, ended: true },
          { turns: 15, ended: false },
        ],
      }),
    ]);
    expect(progress(run)).toMatchObject({ turnsDone: 23n, turnsExpected: 31n });
  });

  it('M2: the mean is over all stages of the kind, including terminal ones', () => {
    const plan = planOf(1, { stages: 2, groupsPerStage: 1, groupSize: 2, maxTurns: 20 }, { kind: 'EVAL', ...EIGHTY });
    const run = running(plan, [
      stage({ status: 'COMPLETED', rollouts: rollouts(2, 6, true) }),
      stage({ rollouts: rollouts(1, 2, false) }),
      stage({ kind: 'EVAL' }),
    ]);
    expect(progress(run).openStages.map(({ turnsExpected }) => turnsExpected)).toEqual([12n, 1600n]);
  });

  it('M2: in a plan with substeps, these are half of a stage', () => {
    const plan = planOf(8, { ...EIGHTY, substeps: 4 });
    const percentAt = (substeps: number, made: StageOf['rollouts']) =>
      progress(running(plan, [stage({ substeps, rollouts: made })])).percent;
    expect(percentAt(0, HALFWAY)).toBeCloseTo(27.5, 9);
    expect(percentAt(0, rollouts(80, 8, true))).toBe(50);
    expect(percentAt(1, rollouts(80, 8, true))).toBe(62.5);
    expect(percentAt(4, rollouts(80, 8, true))).toBe(100);
  });

  it('M2: the remaining time is that of turns, in parallel, and of substeps, in sequence', () => {
    const plan = planOf(8, { ...EIGHTY, substeps: 4 });
    const run = running(plan, [stage({ substeps: 1, rollouts: HALFWAY })], { turnSeconds: 30, substepSeconds: 12 });
    expect(progress(run)).toMatchObject({ remainingSeconds: 1080 + 3 * 12, meanSubstepSeconds: 12 });
    expect(progress({ ...run, substepSeconds: undefined }).remainingSeconds).toBe(1080);
  });

  it('M2: a stage states its own number of substeps; the plan is used for the others', () => {
    const plan = planOf(1, { stages: 3, substeps: 4 });
    const run = running(plan, [stage({ substeps: 5, totalSubsteps: 10 }), stage({ substeps: 6, totalSubsteps: 2 })]);
    expect(progress(run)).toMatchObject({ substepsDone: 11n, substepsExpected: 10n + 6n + 4n, percent: 50 });
    expect(progress(run).openStages.map(({ percent }) => percent)).toEqual([50, 100]);
  });

  const TWO = { stages: 2, groupsPerStage: 1, groupSize: 4, maxTurns: 10, substeps: 5 };
  const CUT = stage({ substeps: 2, rollouts: [...rollouts(1, 6, true), { turns: 3, ended: false }] });

  it('M2: a COMPLETED stage counts only what was done, whatever was planned', () => {
    const run = running(planOf(1, TWO), [{ ...CUT, status: 'COMPLETED' }, stage({ rollouts: rollouts(2, 6, true) })]);
    expect(progress(run)).toMatchObject({ turnsDone: 21n, turnsExpected: 33n, substepsDone: 2n, substepsExpected: 7n });
    // 9 turns that are counted permanently, and 24 of a stage that has half of its turns and none of its substeps.
    expect(progress(run).percent).toBeCloseTo(((9 * 1 + 24 * 0.25) / 33) * 100, 9);
  });

  it('M2: a FAILED or CANCELLED stage keeps done / expected turns as of its end, and adds no remaining time', () => {
    for (const status of ['FAILED', 'CANCELLED'] as const) {
      const run = running(planOf(1, TWO), [{ ...CUT, status }, stage({ rollouts: rollouts(2, 6, true) })]);
      const all = progress(run);
      expect(all).toMatchObject({ turnsDone: 21n, turnsExpected: 48n, substepsDone: 2n, substepsExpected: 10n });
      // It had 9 of 24 turns and 2 of 5 substeps; the other stage has half of its turns and none of its substeps.
      expect(all.percent).toBeCloseTo(((24 * ((9 / 24 + 2 / 5) / 2) + 24 * 0.25) / 48) * 100, 9);
      expect(all.remainingSeconds).toBe(12 * 30);
      // Later events of its rollouts do not change its share.
      const end = { expectedTurns: 24, expectedSubsteps: 5, share: 0.25 };
      const later = (turns: number) =>
        progress(running(planOf(1, TWO), [{ ...CUT, status, end, rollouts: rollouts(1, turns, false) }]));
      expect(later(9).percent).toBe(later(3).percent);
      expect(later(30)).toMatchObject({ turnsDone: 30n, turnsExpected: 30n + 40n });
    }
  });

  it('M2: a stage that fails at 0 of 100 turns is at 0 %, and the run has no remaining time', () => {
    const plan = planOf(1, { groupsPerStage: 5, groupSize: 2, maxTurns: 10 });
    const failed = running(plan, [stage({ status: 'FAILED' })]);
    expect(progress(failed)).toMatchObject({
      percent: 0,
      remainingSeconds: undefined,
      turnsDone: 0n,
      turnsExpected: 100n,
    });
  });

  it('M2: rollouts that were cancelled before any attempt are excluded from the mean', () => {
    const plan = planOf(1, { groupsPerStage: 1, groupSize: 20, maxTurns: 20 });
    const live = rollouts(10, 2, false);
    const untried = Array.from({ length: 9 }, () => ({ turns: 0, ended: true, untried: true as const }));
    // 20 turns done of 11 × 20 expected; cancelled rollouts expect none.
    expect(progress(running(plan, [stage({ rollouts: [...live, ...untried] })]))).toMatchObject({
      percent: expect.closeTo((20 / 220) * 100, 9),
      turnsExpected: 220n,
    });
    const oneEnded = [...live, ...untried, ...rollouts(1, 12, true)];
    expect(progress(running(plan, [stage({ rollouts: oneEnded })]))).toMatchObject({
      turnsDone: 32n,
      turnsExpected: 132n,
    });
  });

  it('M2: stages are weighted by turns: a short evaluation counts little beside a long training step', () => {
    const plan = planOf(
      1,
      { groupsPerStage: 9, groupSize: 1, maxTurns: 10 },
      { kind: 'EVAL', groupsPerStage: 1, groupSize: 1, maxTurns: 10 },
    );
    const evaluated = stage({ kind: 'EVAL', status: 'COMPLETED', rollouts: rollouts(1, 10, true) });
    expect(progress(running(plan, [evaluated])).percent).toBe(10);
  });

  it('M2: if no turns are expected only stages count, and without sizes there is no remaining time', () => {
    const plan = planOf(1, { stages: 9 }, { kind: 'EVAL', stages: 1 });
    const three = [stage({ status: 'COMPLETED' }), stage({ status: 'FAILED' }), stage(), stage({ status: 'PENDING' })];
    const run = running(plan, [...three, stage({ kind: 'EVAL', status: 'CANCELLED' })]);
    // Stages that were cancelled had no turns done.
    expect(progress(run)).toMatchObject({ percent: 10, remainingSeconds: undefined, turnsExpected: 0n });
    expect(progress(run).kinds).toEqual([
      {
        kind: 'TRAIN_STEP',
        planned: 9n,
        created: 4n,
        open: 1n,
        completed: 1n,
        failed: 1n,
        cancelled: 0n,
        ...NO_ROLLOUTS,
      },
      { kind: 'EVAL', planned: 1n, created: 1n, open: 0n, completed: 0n, failed: 0n, cancelled: 1n, ...NO_ROLLOUTS },
    ]);
    expect(progress(run).openStages.map(({ percent }) => percent)).toEqual([undefined, undefined]);
  });

  it('M2: stages with substeps only are weighted by these, and have a remaining time once one was timed', () => {
    const plan = planOf(4, { stages: 4, substeps: 10 });
    const run = running(plan, [stage({ status: 'COMPLETED', substeps: 10 }), stage({ substeps: 5 })]);
    expect(progress(run)).toMatchObject({ percent: 37.5, remainingSeconds: undefined });
    expect(progress({ ...run, substepSeconds: 2 })).toMatchObject({ remainingSeconds: 50 });
  });

  it('M2: an open stage with all turns done has no time left; without open or planned stages it is unset', () => {
    const plan = planOf(1, { stages: 2, groupsPerStage: 1, groupSize: 1 });
    const ended = stage({ status: 'COMPLETED', rollouts: rollouts(1, 3, true) });
    const run = running(plan, [ended, { ...ended, status: 'RUNNING' }]);
    expect(progress(run)).toMatchObject({ percent: 100, remainingSeconds: 0 });
    expect(progress(running(plan, [ended, ended]))).toMatchObject({ percent: 100, remainingSeconds: undefined });
  });

  it('M2: COMPLETED is 100 %, whatever was done', () => {
    const cut: RunOf = { status: 'COMPLETED', plan: planOf(8, EIGHTY), stages: [stage({ rollouts: HALFWAY })] };
    expect(progress(cut)).toMatchObject({ percent: 100, remainingSeconds: undefined, turnsDone: 352n });
    expect(progress({ ...cut, plan: undefined }).percent).toBe(100);
  });

  it('M2: only a RUNNING run has a remaining time', () => {
    const run = running(planOf(8, EIGHTY), [stage({ rollouts: HALFWAY })]);
    for (const status of STATUSES) {
      expect(progress({ ...run, status }).remainingSeconds !== undefined).toBe(status === 'RUNNING');
      expect(progress({ ...run, status }).percent).toBeCloseTo(status === 'COMPLETED' ? 100 : 55, 9);
    }
  });

  it.each([undefined, planOf(8)])(
    'M2: without a plan, or with an empty one, percent and time are unset: %s',
    (plan) => {
      const run = running(plan, [stage({ rollouts: HALFWAY }), stage({ kind: 'EVAL', status: 'COMPLETED' })]);
      expect(progress(run)).toMatchObject({ percent: undefined, remainingSeconds: undefined, turnsDone: 352n });
      // The expected turns of rollouts are known without a plan.
      expect(progress(run).turnsExpected).toBe(384n);
    },
  );

  it('M2: stages, groups and substeps beyond the plan count too', () => {
    const plan = planOf(1, { stages: 1, groupsPerStage: 1, groupSize: 1, maxTurns: 5, substeps: 1 });
    const run = running(plan, [
      stage({ substeps: 3, rollouts: rollouts(4, 5, true) }),
      stage({ kind: 'BASELINE', rollouts: rollouts(1, 7, true) }),
    ]);
    expect(progress(run)).toMatchObject({ percent: 100, turnsDone: 27n, turnsExpected: 27n, substepsExpected: 3n });
  });

  it('M2: a plan whose product exceeds the range of a field is reported as the largest value', () => {
    const vast = planOf(1, { stages: 1e7, groupsPerStage: 1e6, groupSize: 1e6, maxTurns: 1e7, substeps: 1e7 });
    expect(progress(running(vast, [stage()]))).toMatchObject({
      percent: 0,
      turnsExpected: 2n ** 63n - 1n,
      remainingSeconds: 315_576_000_000,
    });
  });

  it('M2: a clock that was set back makes no time negative', () => {
    const run = running(planOf(1, { substeps: 4 }), [stage({ substeps: 1 })], { substepSeconds: -5 });
    expect(progress(run)).toMatchObject({ meanSubstepSeconds: 0, remainingSeconds: 0 });
  });

  it('M2: the end of a stage records what Progress computed for it while it was open', () => {
    const open = stage({ substeps: 1, rollouts: HALFWAY });
    const run = running(planOf(8, { ...EIGHTY, substeps: 4 }), [open]);
    const { percent, turnsExpected } = progress(run);
    expect(stageEndOf(openTally(open, 0), run.plan, tally(run))).toEqual({
      expectedTurns: Number(turnsExpected),
      expectedSubsteps: 4,
      share: (percent ?? 0) / 100,
    });
  });
});

const kind = fc.constantFrom(...STAGE_KINDS);
const small = fc.nat(6);
const anyRollouts = fc.array(fc.record({ turns: fc.nat(25), ended: fc.boolean() }), { maxLength: 6 });
const anyStage: fc.Arbitrary<StageOf> = fc.record({
  kind,
  status: fc.constantFrom(...STATUSES),
  substeps: fc.nat(8),
  totalSubsteps: fc.option(fc.nat(8), { nil: undefined }),
  rollouts: anyRollouts,
});
const anyStagePlan: fc.Arbitrary<StagePlan> = fc.record({
  kind,
  stages: small,
  groupsPerStage: small,
  groupSize: small,
  maxTurns: fc.nat(25),
  substeps: small,
});
const anyPlan: fc.Arbitrary<Plan> = fc.record({
  concurrency: fc.integer({ min: 1, max: 8 }),
  stagePlans: fc.uniqueArray(anyStagePlan, { selector: (plan) => plan.kind, minLength: 1 }),
});
const seconds = fc.option(fc.double({ min: 0, max: 1e6, noNaN: true }), { nil: undefined });
const anyRun: fc.Arbitrary<RunOf> = fc.record({
  status: fc.constantFrom(...STATUSES),
  plan: fc.option(anyPlan, { nil: undefined }),
  stages: fc.array(anyStage, { maxLength: 8 }),
  turnSeconds: seconds,
  substepSeconds: seconds,
});
/** A RUNNING run with a plan and at least one open stage. */
const openRun = fc
  .record({ plan: anyPlan, stages: fc.array(anyStage, { maxLength: 6 }), open: anyStage })
  .map(({ plan, stages, open }) => running(plan, [{ ...open, status: 'RUNNING' }, ...stages]));

/** Replaces the first stage of the run. */
const changed = (run: RunOf, change: (open: StageOf) => StageOf): RunOf => ({
  ...run,
  stages: run.stages.map((each, i) => (i === 0 ? change(each) : each)),
});
const percent = (run: RunOf): number => progress(run).percent as number;
/** Doubles are added in some order: values that are equal on paper may differ in the last digits. */
const HAIR = 1e-9;
const withoutSubsteps = (run: RunOf): RunOf => ({
  ...run,
  plan: run.plan && { ...run.plan, stagePlans: run.plan.stagePlans.map((plan) => ({ ...plan, substeps: 0 })) },
  stages: run.stages.map((each) => ({ ...each, substeps: 0, totalSubsteps: undefined })),
});

describe('M2: for every run', () => {
  it('M2: percents are within 0 to 100, nothing is NaN, and done never exceeds expected', () => {
    fc.assert(
      fc.property(anyRun, (run) => {
        const { openStages, kinds, ...all } = progress(run);
        for (const { percent: share } of [all, ...openStages])
          if (share !== undefined) expect(share >= 0 && share <= 100).toBe(true);
        expect(all.remainingSeconds === undefined || all.remainingSeconds >= 0).toBe(true);
        for (const each of [all, ...openStages]) {
          expect(each.turnsDone <= each.turnsExpected && each.substepsDone <= each.substepsExpected).toBe(true);
        }
        expect(openStages).toHaveLength(run.stages.filter(({ status }) => !isTerminal(status)).length);
        expect(kinds.reduce((sum, { created }) => sum + created, 0n)).toBe(BigInt(run.stages.length));
      }),
      { numRuns: 500 },
    );
  });

  it('M2: percent is set exactly with a plan or when COMPLETED, and 100 exactly when nothing is left or COMPLETED', () => {
    fc.assert(
      fc.property(anyRun, (run) => {
        const { percent: share, turnsDone, turnsExpected } = progress(run);
        expect(share !== undefined).toBe(run.plan !== undefined || run.status === 'COMPLETED');
        if (run.status === 'COMPLETED') expect(share).toBe(100);
        else if (share === 100) expect(turnsDone).toBe(turnsExpected);
      }),
      { numRuns: 500 },
    );
  });

  it('M2: one more substep never decreases the percent', () => {
    fc.assert(
      fc.property(openRun, (run) => {
        const next = changed(run, (open) => ({ ...open, substeps: open.substeps + 1 }));
        expect(percent(next)).toBeGreaterThanOrEqual(percent(run) - HAIR);
      }),
      { numRuns: 500 },
    );
  });

  it('M2: without substeps, neither a turn, a new rollout, nor the start or end of a stage decreases the percent', () => {
    const turn = (open: StageOf): StageOf => {
      const live = open.rollouts.findIndex(({ ended }) => !ended);
      return {
        ...open,
        rollouts: open.rollouts.map((each, i) => (i === live ? { ...each, turns: each.turns + 1 } : each)),
      };
    };
    const ended = (status: Status) => (open: StageOf) => ({ ...open, status });
    const steps = fc.constantFrom(turn, ended('COMPLETED'), ended('FAILED'), ended('CANCELLED'), ended('PENDING'));
    fc.assert(
      fc.property(openRun.map(withoutSubsteps), steps, (run, step) => {
        expect(percent(changed(run, step))).toBeGreaterThanOrEqual(percent(run) - HAIR);
      }),
      { numRuns: 1000 },
    );
  });

  it('M2: without substeps, a rollout that ends no later than others never decreases the percent', () => {
    fc.assert(
      fc.property(openRun.map(withoutSubsteps), fc.nat(25), (run, turns) => {
        const kindOf = run.stages[0]?.kind as StageKind;
        const others = run.stages.filter((each) => each.kind === kindOf).flatMap((each) => each.rollouts);
        const fewest = Math.min(...others.filter(({ ended }) => ended).map((each) => each.turns), 25);
        const maxTurns = run.plan?.stagePlans.find((plan) => plan.kind === kindOf)?.maxTurns ?? 0;
        const own = Math.min(turns, fewest, others.some(({ ended }) => ended) ? 25 : maxTurns);
        const ending = (is: boolean) =>
          changed(run, (open) => ({ ...open, rollouts: [...open.rollouts, { turns: own, ended: is }] }));
        expect(percent(ending(true))).toBeGreaterThanOrEqual(percent(ending(false)) - HAIR);
      }),
      { numRuns: 1000 },
    );
  });

  it('M2: higher concurrency never increases the remaining time', () => {
    fc.assert(
      fc.property(openRun, (run) => {
        const more = { ...run, plan: run.plan && { ...run.plan, concurrency: run.plan.concurrency * 2 } };
        const [slow, fast] = [progress(run).remainingSeconds, progress(more).remainingSeconds];
        expect(slow === undefined).toBe(fast === undefined);
        if (slow !== undefined && fast !== undefined) expect(fast).toBeLessThanOrEqual(slow);
      }),
    );
  });
});
