import type { Status } from './lifecycle.ts';
import { LIMITS } from './limits.ts';
import { type Plan, STAGE_KINDS, type StageKind, type StagePlan } from './run.ts';

/** Counts of one run from the store. `progressOf` computes progress from them (M2). */
export interface RunTally {
  readonly kinds: readonly KindTally[];
  /** Stages that are not terminal, by kind, then by number. */
  readonly openStages: readonly OpenStageTally[];
  /** Turns of ended rollouts, and their total seconds. */
  readonly turns: Durations;
  /** Substeps with a known duration, and their total seconds. */
  readonly substeps: Durations;
}

interface Durations {
  readonly count: bigint;
  readonly seconds: number;
}

/** Terminal rollouts. */
interface TerminalRollouts {
  readonly count: bigint;
  /** Terminal rollouts that had an attempt. */
  readonly tried: bigint;
  readonly turns: bigint;
}

/** Existing and finished work of terminal stages. */
export interface StageWorkTally {
  readonly rollouts: bigint;
  readonly turns: bigint;
  readonly substeps: bigint;
}

/** The expected work of a stage when it ended FAILED or CANCELLED. */
export interface StageEnd {
  /** Can be a fraction, because it can be based on a mean. */
  readonly expectedTurns: number;
  readonly expectedSubsteps: number;
  /** The finished share of the work, 0 to 1. Undefined: no countable work was expected. */
  readonly share: number | undefined;
}

/** FAILED and CANCELLED stages. */
interface AbandonedTally extends StageWorkTally {
  /** Sums over the `StageEnd`s. An undefined share counts as 0. */
  readonly expectedTurns: number;
  readonly expectedSubsteps: number;
  readonly shares: number;
  /** Sum of the shares, each multiplied by the expected turns of its stage. */
  readonly weightedShares: number;
}

/** All stages of one kind. */
export interface KindTally {
  readonly kind: StageKind;
  readonly pending: bigint;
  /** INITIALIZING or RUNNING. */
  readonly open: bigint;
  readonly completed: bigint;
  readonly failed: bigint;
  readonly cancelled: bigint;
  readonly completedStages: StageWorkTally;
  readonly abandonedStages: AbandonedTally;
  /** Rollouts of all stages of the kind. */
  readonly rollouts: bigint;
  /** The mean turns of rollouts that had an attempt are the expected turns of other rollouts. */
  readonly terminalRollouts: TerminalRollouts;
}

export interface OpenStageTally {
  readonly id: string;
  readonly kind: StageKind;
  readonly number: bigint;
  readonly status: Status;
  readonly phase: string;
  readonly completedSubsteps: bigint;
  /** Undefined: the value of the plan. */
  readonly totalSubsteps: bigint | undefined;
  /** Created rollouts. */
  readonly rollouts: bigint;
  readonly terminalRollouts: TerminalRollouts;
  /**
   * Turns so far of each rollout that is INITIALIZING or RUNNING. All other rollouts that are not terminal are PENDING
   * and have no turns.
   */
  readonly liveTurns: readonly bigint[];
}

export interface Progress {
  readonly percent: number | undefined;
  readonly remainingSeconds: number | undefined;
  readonly turnsDone: bigint;
  readonly turnsExpected: bigint;
  readonly substepsDone: bigint;
  readonly substepsExpected: bigint;
  readonly meanTurnSeconds: number | undefined;
  readonly meanSubstepSeconds: number | undefined;
  readonly kinds: readonly KindProgress[];
  /** The first of them. All open stages count. */
  readonly openStages: readonly StageProgress[];
}

export interface KindProgress {
  readonly kind: StageKind;
  readonly planned: bigint;
  readonly created: bigint;
  readonly open: bigint;
  readonly completed: bigint;
  readonly failed: bigint;
  readonly cancelled: bigint;
  readonly rolloutsExpected: bigint;
  readonly rolloutsCreated: bigint;
  readonly rolloutsTerminal: bigint;
}

export interface StageProgress {
  readonly id: string;
  readonly kind: StageKind;
  readonly number: bigint;
  readonly status: Status;
  readonly phase: string;
  readonly percent: number | undefined;
  readonly turnsDone: bigint;
  readonly turnsExpected: bigint;
  readonly substepsDone: bigint;
  readonly substepsExpected: bigint;
  readonly rolloutsExpected: bigint;
  readonly rolloutsCreated: bigint;
  readonly rolloutsLive: bigint;
  readonly rolloutsTerminal: bigint;
}

/** Expected seconds of a turn before the first turn has ended. */
const FIRST_TURN_SECONDS = 30;

/** Largest Duration. */
const LONGEST_SECONDS = 315_576_000_000;

/** Largest int64. Products of a plan's numbers can exceed it. */
const MOST = 2n ** 63n - 1n;

/**
 * Finished and expected work of one or many stages of a kind. Expected turns can be fractions, because they can be
 * based on means.
 */
interface Work {
  readonly stages: number;
  readonly turnsDone: number;
  readonly turnsExpected: number;
  readonly substepsDone: number;
  readonly substepsExpected: number;
  /** Sum over stages of the finished share (0 to 1). */
  readonly shares: number;
  /** Sum over stages of that share multiplied by the expected turns. */
  readonly weightedShares: number;
}

/** M2: computes the progress of a run. */
export function progressOf(status: Status, plan: Plan | undefined, tally: RunTally): Progress {
  const open = tally.openStages.map((stage) => ({
    stage,
    work: openStageWork(stage, planFor(plan, stage.kind), tally),
  }));
  const ahead = [...open.map(({ work }) => work), ...STAGE_KINDS.map((kind) => unmadeWork(kind, plan, tally))];
  const works = [
    ...ahead,
    ...STAGE_KINDS.flatMap((kind) => [completedWork(kind, tally), abandonedWork(kind, tally)]),
  ].filter(({ stages }) => stages > 0);
  const sum = (of: (work: Work) => number) => works.reduce((total, work) => total + of(work), 0);
  const [turnsDone, turnsExpected] = [sum((work) => work.turnsDone), sum((work) => work.turnsExpected)];
  const [substepsDone, substepsExpected] = [sum((work) => work.substepsDone), sum((work) => work.substepsExpected)];
  const meanTurnSeconds = mean(tally.turns);
  const meanSubstepSeconds = mean(tally.substeps);
  const planned = plan !== undefined && plan.stagePlans.length > 0;
  return {
    percent: status === 'COMPLETED' ? 100 : planned ? runShare(works, turnsExpected) * 100 : undefined,
    remainingSeconds:
      status === 'RUNNING' && planned
        ? remaining(ahead, plan.concurrency, { turn: meanTurnSeconds, substep: meanSubstepSeconds })
        : undefined,
    turnsDone: whole(turnsDone),
    turnsExpected: whole(turnsExpected),
    substepsDone: whole(substepsDone),
    substepsExpected: whole(substepsExpected),
    meanTurnSeconds,
    meanSubstepSeconds,
    kinds: STAGE_KINDS.flatMap((kind) => kindProgress(kind, plan, tally)),
    openStages: open
      .slice(0, LIMITS.openStages)
      .map(({ stage, work }) => stageProgress(stage, planFor(plan, stage.kind), work)),
  };
}

function planFor(plan: Plan | undefined, kind: StageKind): StagePlan | undefined {
  return plan?.stagePlans.find((stagePlan) => stagePlan.kind === kind);
}

function tallyOf(kind: StageKind, tally: RunTally): KindTally | undefined {
  return tally.kinds.find((counted) => counted.kind === kind);
}

/**
 * Returns the expected turns of a rollout of the kind: the mean over terminal rollouts that had an attempt, or the
 * plan's `max_turns` before the first of them.
 */
function expectedTurns(kind: StageKind, stagePlan: StagePlan | undefined, tally: RunTally): number {
  const { tried = 0n, turns = 0n } = tallyOf(kind, tally)?.terminalRollouts ?? {};
  return tried === 0n ? (stagePlan?.maxTurns ?? 0) : Number(turns) / Number(tried);
}

/** The planned or the created rollouts, whichever is more. */
function expectedRollouts({ rollouts }: OpenStageTally, stagePlan: StagePlan | undefined): number {
  return Math.max(Number(rollouts), plannedRollouts(stagePlan));
}

function plannedRollouts(stagePlan: StagePlan | undefined): number {
  return (stagePlan?.groupsPerStage ?? 0) * (stagePlan?.groupSize ?? 0);
}

interface OpenWork extends Work {
  /** Undefined: no countable work is expected. */
  readonly share: number | undefined;
}

function openStageWork(stage: OpenStageTally, stagePlan: StagePlan | undefined, tally: RunTally): OpenWork {
  const each = expectedTurns(stage.kind, stagePlan, tally);
  const live = stage.liveTurns.map(Number);
  const begun = Number(stage.terminalRollouts.count) + live.length;
  const waiting = Math.max(0, expectedRollouts(stage, stagePlan) - begun);
  const terminalTurns = Number(stage.terminalRollouts.turns);
  const turnsDone = terminalTurns + live.reduce((total, turns) => total + turns, 0);
  const turnsExpected =
    terminalTurns + live.reduce((total, turns) => total + Math.max(turns, each), 0) + waiting * each;
  const substepsDone = Number(stage.completedSubsteps);
  const substepsExpected = Math.max(substepsDone, Number(stage.totalSubsteps ?? stagePlan?.substeps ?? 0));
  const done = { turnsDone, turnsExpected, substepsDone, substepsExpected };
  const share = shareOf(done);
  return { ...workOf(1, done, share ?? 0), share };
}

/** A COMPLETED stage expects no more work than it finished. */
function completedWork(kind: StageKind, tally: RunTally): Work {
  const counted = tallyOf(kind, tally);
  const turns = Number(counted?.completedStages.turns ?? 0n);
  const substeps = Number(counted?.completedStages.substeps ?? 0n);
  const done = { turnsDone: turns, turnsExpected: turns, substepsDone: substeps, substepsExpected: substeps };
  return workOf(Number(counted?.completed ?? 0n), done, 1);
}

/**
 * A FAILED or CANCELLED stage keeps the finished share that it had when it ended. Its rollouts can continue afterwards.
 */
function abandonedWork(kind: StageKind, tally: RunTally): Work {
  const counted = tallyOf(kind, tally);
  if (counted === undefined) return workOf(0, NOTHING_DONE, 0);
  const { turns, substeps, expectedTurns, expectedSubsteps, shares, weightedShares } = counted.abandonedStages;
  const [turnsDone, substepsDone] = [Number(turns), Number(substeps)];
  return {
    stages: Number(counted.failed + counted.cancelled),
    turnsDone,
    turnsExpected: Math.max(turnsDone, expectedTurns),
    substepsDone,
    substepsExpected: Math.max(substepsDone, expectedSubsteps),
    shares,
    weightedShares,
  };
}

/** Work of planned stages that do not exist yet. */
function unmadeWork(kind: StageKind, plan: Plan | undefined, tally: RunTally): Work {
  const stagePlan = planFor(plan, kind);
  const stages = unmadeStages(kind, stagePlan, tally);
  const turnsExpected = stages * plannedRollouts(stagePlan) * expectedTurns(kind, stagePlan, tally);
  return workOf(stages, { ...NOTHING_DONE, turnsExpected, substepsExpected: stages * (stagePlan?.substeps ?? 0) }, 0);
}

function unmadeStages(kind: StageKind, stagePlan: StagePlan | undefined, tally: RunTally): number {
  return Math.max(0, (stagePlan?.stages ?? 0) - Number(createdOf(tallyOf(kind, tally))));
}

/** Returns the work of stages that have the same share. */
function workOf(stages: number, done: Done, share: number): Work {
  return { stages, ...done, shares: stages * share, weightedShares: done.turnsExpected * share };
}

type Done = Omit<Work, 'stages' | 'shares' | 'weightedShares'>;

const NOTHING_DONE: Done = Object.freeze({ turnsDone: 0, turnsExpected: 0, substepsDone: 0, substepsExpected: 0 });

function shareOf(work: Done): number | undefined {
  const turnShare = work.turnsExpected > 0 ? work.turnsDone / work.turnsExpected : undefined;
  const substepShare = work.substepsExpected > 0 ? work.substepsDone / work.substepsExpected : undefined;
  return turnShare !== undefined && substepShare !== undefined
    ? (turnShare + substepShare) / 2
    : (turnShare ?? substepShare);
}

/** Stages are weighted by their expected turns, or equally if no turns are expected. */
function runShare(works: readonly Work[], turnsExpected: number): number {
  const sum = (of: (work: Work) => number) => works.reduce((total, work) => total + of(work), 0);
  const [done, total] =
    turnsExpected > 0
      ? [sum((work) => work.weightedShares), turnsExpected]
      : [sum((work) => work.shares), sum((work) => work.stages)];
  return total === 0 ? 0 : Math.min(1, done / total);
}

/** Returns undefined if no work remains, if it cannot be counted, or if none of its parts was ever timed. */
function remaining(
  ahead: readonly Work[],
  concurrency: number,
  seconds: { readonly turn: number | undefined; readonly substep: number | undefined },
): number | undefined {
  const sum = (of: (work: Work) => number) => ahead.reduce((total, work) => total + of(work), 0);
  const stages = sum((work) => work.stages);
  if (stages === 0) return undefined;
  const turnsLeft = sum((work) => work.turnsExpected - work.turnsDone);
  const substepsLeft = sum((work) => work.substepsExpected - work.substepsDone);
  if (turnsLeft === 0 && substepsLeft === 0) return sum((work) => work.shares) === stages ? 0 : undefined;
  if (turnsLeft === 0 && seconds.substep === undefined) return undefined;
  const left = (turnsLeft * (seconds.turn ?? FIRST_TURN_SECONDS)) / concurrency + substepsLeft * (seconds.substep ?? 0);
  return Math.min(left, LONGEST_SECONDS);
}

function kindProgress(kind: StageKind, plan: Plan | undefined, tally: RunTally): KindProgress[] {
  const counted = tallyOf(kind, tally);
  const stagePlan = planFor(plan, kind);
  const planned = stagePlan?.stages ?? 0;
  const created = createdOf(counted);
  if (planned === 0 && created === 0n) return [];
  const { open = 0n, completed = 0n, failed = 0n, cancelled = 0n } = counted ?? {};
  const stages = tally.openStages.filter((stage) => stage.kind === kind);
  const rolloutsExpected =
    Number((counted?.completedStages.rollouts ?? 0n) + (counted?.abandonedStages.rollouts ?? 0n)) +
    stages.reduce((sum, stage) => sum + expectedRollouts(stage, stagePlan), 0) +
    unmadeStages(kind, stagePlan, tally) * plannedRollouts(stagePlan);
  return [
    {
      kind,
      planned: BigInt(planned),
      created,
      open,
      completed,
      failed,
      cancelled,
      rolloutsExpected: whole(rolloutsExpected),
      rolloutsCreated: counted?.rollouts ?? 0n,
      rolloutsTerminal: counted?.terminalRollouts.count ?? 0n,
    },
  ];
}

function stageProgress(stage: OpenStageTally, stagePlan: StagePlan | undefined, work: OpenWork): StageProgress {
  const { id, kind, number, status, phase } = stage;
  return {
    id,
    kind,
    number,
    status,
    phase,
    percent: work.share === undefined ? undefined : work.share * 100,
    turnsDone: whole(work.turnsDone),
    turnsExpected: whole(work.turnsExpected),
    substepsDone: whole(work.substepsDone),
    substepsExpected: whole(work.substepsExpected),
    rolloutsExpected: whole(expectedRollouts(stage, stagePlan)),
    rolloutsCreated: stage.rollouts,
    rolloutsLive: BigInt(stage.liveTurns.length),
    rolloutsTerminal: stage.terminalRollouts.count,
  };
}

function createdOf(counted: KindTally | undefined): bigint {
  if (counted === undefined) return 0n;
  return counted.pending + counted.open + counted.completed + counted.failed + counted.cancelled;
}

function mean({ count, seconds }: Durations): number | undefined {
  // The sum can be negative, because a clock may have been set back.
  return count === 0n ? undefined : Math.max(0, seconds / Number(count));
}

function whole(value: number): bigint {
  const rounded = BigInt(Math.round(value));
  return rounded < MOST ? rounded : MOST;
}

/** Returns the expected work of a stage that is still open, and its finished share. */
export function stageEndOf(stage: OpenStageTally, plan: Plan | undefined, tally: RunTally): StageEnd {
  const { turnsExpected, substepsExpected, share } = openStageWork(stage, planFor(plan, stage.kind), tally);
  return { expectedTurns: turnsExpected, expectedSubsteps: substepsExpected, share };
}
