import { isTerminal, type Status } from './lifecycle.ts';
import { type Plan, STAGE_KINDS, type StageKind, type StagePlan } from './run.ts';

/** What is counted of one run; `progressOf` makes the rest of it (M2). */
export interface RunTally {
  readonly kinds: readonly KindTally[];
  /** Stages that are not terminal, by kind, then number. */
  readonly openStages: readonly OpenStageTally[];
  /** Turns of rollouts that have ended, and the seconds they took together. */
  readonly turns: Durations;
  /** Substeps whose duration is known, and the seconds they took together. */
  readonly substeps: Durations;
}

interface Durations {
  readonly count: bigint;
  readonly seconds: number;
}

interface Turns {
  readonly count: bigint;
  readonly turns: bigint;
}

/** All stages of one kind. */
export interface KindTally {
  readonly kind: StageKind;
  readonly pending: bigint;
  /** INITIALIZING, RUNNING or PAUSED. */
  readonly open: bigint;
  readonly completed: bigint;
  readonly failed: bigint;
  readonly cancelled: bigint;
  /** Made and done in terminal stages: these expect no more. */
  readonly terminalStages: { readonly rollouts: bigint; readonly turns: bigint; readonly substeps: bigint };
  /** Rollouts made, in all stages of the kind. */
  readonly rollouts: bigint;
  /** Those that are terminal, and their turns: their mean is what others are expected to take. */
  readonly terminalRollouts: Turns;
}

export interface OpenStageTally {
  readonly id: string;
  readonly kind: StageKind;
  readonly number: bigint;
  readonly status: Status;
  readonly phase: string;
  readonly completedSubsteps: bigint;
  /** Undefined: the plan's. */
  readonly totalSubsteps: bigint | undefined;
  /** Rollouts made. */
  readonly rollouts: bigint;
  readonly terminalRollouts: Turns;
  /** Turns so far of each rollout that is INITIALIZING or RUNNING. Those that are neither terminal nor here wait, and have none. */
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
  readonly openStages: readonly StageProgress[];
}

export interface KindProgress {
  readonly kind: StageKind;
  readonly planned: bigint;
  readonly made: bigint;
  readonly open: bigint;
  readonly completed: bigint;
  readonly failed: bigint;
  readonly cancelled: bigint;
  readonly rolloutsExpected: bigint;
  readonly rolloutsMade: bigint;
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
  readonly rolloutsMade: bigint;
  readonly rolloutsLive: bigint;
  readonly rolloutsTerminal: bigint;
}

/** Until a turn has ended, one is expected to take so long (row C-46). */
const FIRST_TURN_SECONDS = 30;

/** What a Duration can say. */
const LONGEST_SECONDS = 315_576_000_000;

/** What an int64 can say: plans may multiply to more. */
const MOST = 2n ** 63n - 1n;

/** What one stage, or many of one kind, have done and are expected to do. Turns expected may be fractions: they are means. */
interface Work {
  readonly stages: number;
  readonly turnsDone: number;
  readonly turnsExpected: number;
  readonly substepsDone: number;
  readonly substepsExpected: number;
  /** 0 to 1; undefined where nothing is expected that could be counted. */
  readonly share: number | undefined;
}

/** M2: how far a run is. */
export function progressOf(status: Status, plan: Plan | undefined, tally: RunTally): Progress {
  const open = tally.openStages.map((stage) => ({
    stage,
    work: openStageWork(stage, planFor(plan, stage.kind), tally),
  }));
  const works = [
    ...open.map(({ work }) => work),
    ...STAGE_KINDS.flatMap((kind) => [terminalWork(kind, tally), unmadeWork(kind, plan, tally)]),
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
        ? remaining(works, plan.concurrency, { turn: meanTurnSeconds, substep: meanSubstepSeconds })
        : undefined,
    turnsDone: whole(turnsDone),
    turnsExpected: whole(turnsExpected),
    substepsDone: whole(substepsDone),
    substepsExpected: whole(substepsExpected),
    meanTurnSeconds,
    meanSubstepSeconds,
    kinds: STAGE_KINDS.flatMap((kind) => kindProgress(kind, plan, tally)),
    openStages: open.map(({ stage, work }) => stageProgress(stage, planFor(plan, stage.kind), work)),
  };
}

function planFor(plan: Plan | undefined, kind: StageKind): StagePlan | undefined {
  return plan?.stagePlans.find((stagePlan) => stagePlan.kind === kind);
}

function tallyOf(kind: StageKind, tally: RunTally): KindTally | undefined {
  return tally.kinds.find((counted) => counted.kind === kind);
}

/** What a rollout of the kind is expected to take: the mean of terminal ones; before the first, all turns that it may. */
function expectedTurns(kind: StageKind, stagePlan: StagePlan | undefined, tally: RunTally): number {
  const { count = 0n, turns = 0n } = tallyOf(kind, tally)?.terminalRollouts ?? {};
  return count === 0n ? (stagePlan?.maxTurns ?? 0) : Number(turns) / Number(count);
}

/** Planned and made, whichever is more. */
function expectedRollouts({ rollouts }: OpenStageTally, stagePlan: StagePlan | undefined): number {
  return Math.max(Number(rollouts), plannedRollouts(stagePlan));
}

function plannedRollouts(stagePlan: StagePlan | undefined): number {
  return (stagePlan?.groupsPerStage ?? 0) * (stagePlan?.groupSize ?? 0);
}

function openStageWork(stage: OpenStageTally, stagePlan: StagePlan | undefined, tally: RunTally): Work {
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
  return workOf(1, turnsDone, turnsExpected, substepsDone, substepsExpected);
}

function terminalWork(kind: StageKind, tally: RunTally): Work {
  const counted = tallyOf(kind, tally);
  const stages = Number((counted?.completed ?? 0n) + (counted?.failed ?? 0n) + (counted?.cancelled ?? 0n));
  const turns = Number(counted?.terminalStages.turns ?? 0n);
  const substeps = Number(counted?.terminalStages.substeps ?? 0n);
  return { ...workOf(stages, turns, turns, substeps, substeps), share: 1 };
}

/** Stages that are planned and not made yet. */
function unmadeWork(kind: StageKind, plan: Plan | undefined, tally: RunTally): Work {
  const stagePlan = planFor(plan, kind);
  const stages = unmadeStages(kind, stagePlan, tally);
  const turnsExpected = stages * plannedRollouts(stagePlan) * expectedTurns(kind, stagePlan, tally);
  return { ...workOf(stages, 0, turnsExpected, 0, stages * (stagePlan?.substeps ?? 0)), share: 0 };
}

function unmadeStages(kind: StageKind, stagePlan: StagePlan | undefined, tally: RunTally): number {
  return Math.max(0, (stagePlan?.stages ?? 0) - Number(madeOf(tallyOf(kind, tally))));
}

function workOf(
  stages: number,
  turnsDone: number,
  turnsExpected: number,
  substepsDone: number,
  substepsExpected: number,
): Work {
  const turnShare = turnsExpected > 0 ? turnsDone / turnsExpected : undefined;
  const substepShare = substepsExpected > 0 ? substepsDone / substepsExpected : undefined;
  const share =
    turnShare !== undefined && substepShare !== undefined
      ? (turnShare + substepShare) / 2
      : (turnShare ?? substepShare);
  return { stages, turnsDone, turnsExpected, substepsDone, substepsExpected, share };
}

/** Stages weigh by the turns they are expected to take; where none are expected at all, equally. */
function runShare(works: readonly Work[], turnsExpected: number): number {
  const weight = turnsExpected > 0 ? (work: Work) => work.turnsExpected : (work: Work) => work.stages;
  const total = works.reduce((sum, work) => sum + weight(work), 0);
  return total === 0 ? 0 : works.reduce((sum, work) => sum + weight(work) * (work.share ?? 0), 0) / total;
}

/** Undefined where what is left cannot be counted, or no part of it has ever been timed. */
function remaining(
  works: readonly Work[],
  concurrency: number,
  seconds: { readonly turn: number | undefined; readonly substep: number | undefined },
): number | undefined {
  const turnsLeft = works.reduce((sum, work) => sum + work.turnsExpected - work.turnsDone, 0);
  const substepsLeft = works.reduce((sum, work) => sum + work.substepsExpected - work.substepsDone, 0);
  if (turnsLeft === 0 && substepsLeft === 0) return works.every(({ share }) => share === 1) ? 0 : undefined;
  if (turnsLeft === 0 && seconds.substep === undefined) return undefined;
  const left = (turnsLeft * (seconds.turn ?? FIRST_TURN_SECONDS)) / concurrency + substepsLeft * (seconds.substep ?? 0);
  return Math.min(left, LONGEST_SECONDS);
}

function kindProgress(kind: StageKind, plan: Plan | undefined, tally: RunTally): KindProgress[] {
  const counted = tallyOf(kind, tally);
  const stagePlan = planFor(plan, kind);
  const planned = stagePlan?.stages ?? 0;
  const made = madeOf(counted);
  if (planned === 0 && made === 0n) return [];
  const { open = 0n, completed = 0n, failed = 0n, cancelled = 0n } = counted ?? {};
  const stages = tally.openStages.filter((stage) => stage.kind === kind);
  const rolloutsExpected =
    Number(counted?.terminalStages.rollouts ?? 0n) +
    stages.reduce((sum, stage) => sum + expectedRollouts(stage, stagePlan), 0) +
    unmadeStages(kind, stagePlan, tally) * plannedRollouts(stagePlan);
  return [
    {
      kind,
      planned: BigInt(planned),
      made,
      open,
      completed,
      failed,
      cancelled,
      rolloutsExpected: whole(rolloutsExpected),
      rolloutsMade: counted?.rollouts ?? 0n,
      rolloutsTerminal: counted?.terminalRollouts.count ?? 0n,
    },
  ];
}

function stageProgress(stage: OpenStageTally, stagePlan: StagePlan | undefined, work: Work): StageProgress {
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
    rolloutsMade: stage.rollouts,
    rolloutsLive: BigInt(stage.liveTurns.length),
    rolloutsTerminal: stage.terminalRollouts.count,
  };
}

function madeOf(counted: KindTally | undefined): bigint {
  if (counted === undefined) return 0n;
  return counted.pending + counted.open + counted.completed + counted.failed + counted.cancelled;
}

function mean({ count, seconds }: Durations): number | undefined {
  // A clock may have been set back meanwhile.
  return count === 0n ? undefined : Math.max(0, seconds / Number(count));
}

function whole(value: number): bigint {
  const rounded = BigInt(Math.round(value));
  return rounded < MOST ? rounded : MOST;
}

/** L5's progress of a stage when it moves: what Progress would say of it. */
export function stagePercent(
  status: Status,
  stage: OpenStageTally,
  plan: Plan | undefined,
  tally: RunTally,
): number | undefined {
  if (isTerminal(status)) return 100;
  const { share } = openStageWork(stage, planFor(plan, stage.kind), tally);
  return share === undefined ? undefined : share * 100;
}
