import { AnabranchError } from './errors.ts';

/** The statuses of all nouns. MOVES defines the legal moves of each noun. */
export const STATUSES = ['PENDING', 'INITIALIZING', 'RUNNING', 'PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED'] as const;
export type Status = (typeof STATUSES)[number];

/** L1: a trajectory is RUNNING from its creation. A seal ends it permanently. */
export type SealStatus = 'COMPLETED' | 'FAILED' | 'CANCELLED';
export type TrajectoryStatus = 'RUNNING' | SealStatus;

export function isSealed(status: TrajectoryStatus): status is SealStatus {
  return status !== 'RUNNING';
}

/** Statuses that runs and stages can be created with (L2). */
export const INITIAL_STATUSES = ['PENDING', 'INITIALIZING', 'RUNNING'] as const;
export type InitialStatus = (typeof INITIAL_STATUSES)[number];

/** Statuses that end a lifecycle. */
export const TERMINAL_STATUSES: readonly Status[] = ['COMPLETED', 'FAILED', 'CANCELLED'];

export function isTerminal(status: Status): status is SealStatus {
  return TERMINAL_STATUSES.includes(status);
}

export const VERBS = ['start', 'pause', 'resume', 'complete', 'fail', 'cancel', 'reopen'] as const;
export type Verb = (typeof VERBS)[number];
/** A stage is never PAUSED. */
export type StageVerb = Exclude<Verb, 'pause' | 'resume'>;

interface Verbs {
  readonly run: Verb;
  readonly stage: StageVerb;
}
export type Noun = keyof Verbs;
export type VerbOf<N extends Noun> = Verbs[N];

interface Move {
  readonly from: readonly Status[];
  readonly to: Status;
}

const OPEN: readonly Status[] = ['PENDING', 'INITIALIZING', 'RUNNING', 'PAUSED'];

const SHARED_MOVES: Readonly<Record<Verb, Move>> = {
  start: { from: ['PENDING', 'INITIALIZING'], to: 'RUNNING' },
  pause: { from: ['RUNNING'], to: 'PAUSED' },
  resume: { from: ['PAUSED'], to: 'RUNNING' },
  complete: { from: ['RUNNING', 'PAUSED'], to: 'COMPLETED' },
  fail: { from: OPEN, to: 'FAILED' },
  cancel: { from: OPEN, to: 'CANCELLED' },
  reopen: { from: TERMINAL_STATUSES, to: 'RUNNING' },
};

const { pause: _, resume: __, ...STAGE_MOVES } = SHARED_MOVES;

/**
 * L2: the legal moves of each noun. A run can end from every open status.
 */
export const MOVES: { readonly [N in Noun]: Readonly<Record<VerbOf<N>, Move>> } = Object.freeze({
  run: { ...SHARED_MOVES, complete: { from: OPEN, to: 'COMPLETED' } },
  stage: { ...STAGE_MOVES, complete: { from: ['RUNNING'], to: 'COMPLETED' } },
});

/** The outcome of a terminal verb. A repeated verb must have the same outcome (L5). */
export interface Outcome {
  readonly message: string;
  readonly resultJson: string;
}

/**
 * L5: returns the status that a verb leads to. Returns undefined if the status is in effect and nothing must be
 * written. Errors: RESULT_CONFLICT (in effect with another result), ILLEGAL_TRANSITION.
 */
export function decideMove<N extends Noun>(
  noun: N,
  status: Status,
  stored: Outcome,
  verb: VerbOf<N>,
  outcome: Outcome,
): Status | undefined {
  const { from, to }: Move = MOVES[noun][verb];
  if (from.includes(status)) return to;
  const name = `${verb[0]?.toUpperCase()}${verb.slice(1)}${NOUNS[noun]}`;
  const metadata = { status, verb };
  if (status !== to) {
    throw new AnabranchError(
      'ILLEGAL_TRANSITION',
      `${name} requires a ${noun} that is ${listed(from)}; this one is ${status}.`,
      { metadata },
    );
  }
  if (isTerminal(to) && (stored.message !== outcome.message || stored.resultJson !== outcome.resultJson)) {
    throw new AnabranchError(
      'RESULT_CONFLICT',
      `This ${noun} is ${status} already, with another message or result, which cannot change unless it is reopened.`,
      { metadata },
    );
  }
  return undefined;
}

const NOUNS = { run: 'Run', stage: 'Stage' } as const;

function listed(statuses: readonly Status[]): string {
  return statuses.length === 1 ? `${statuses[0]}` : `${statuses.slice(0, -1).join(', ')} or ${statuses.at(-1)}`;
}

/**
 * L2: decides what an upsert changes in the status of an environment. Returns the new status; undefined if it does not
 * change. A final status and its message never change. Errors: ILLEGAL_TRANSITION, RESULT_CONFLICT.
 */
export function decideEnvironmentStatus(
  stored: { readonly status: Status; readonly message: string },
  { status, message }: { readonly status?: Status | undefined; readonly message?: string | undefined },
): Status | undefined {
  const changes = status !== undefined && status !== stored.status;
  if (changes && isTerminal(stored.status)) {
    throw new AnabranchError(
      'ILLEGAL_TRANSITION',
      `\`status\` cannot become ${status}: this environment is ${stored.status}, which is final. Create another environment.`,
      { metadata: { status: stored.status, requested_status: status } },
    );
  }
  if (isTerminal(stored.status) && message !== undefined && message !== stored.message) {
    throw new AnabranchError(
      'RESULT_CONFLICT',
      `This environment is ${stored.status} already, with another message, which cannot change.`,
      { metadata: { status: stored.status } },
    );
  }
  return changes ? status : undefined;
}
