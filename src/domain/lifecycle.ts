import { AnabranchError } from './errors.ts';

/** One vocabulary of status (design section 3). Which moves are legal is a table a noun. */
export const STATUSES = ['PENDING', 'INITIALIZING', 'RUNNING', 'PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED'] as const;
export type Status = (typeof STATUSES)[number];

/** L1: a trajectory is RUNNING from its creation and moves only by seal, for good. */
export type SealStatus = 'COMPLETED' | 'FAILED' | 'CANCELLED';
export type TrajectoryStatus = 'RUNNING' | SealStatus;

export function isSealed(status: TrajectoryStatus): status is SealStatus {
  return status !== 'RUNNING';
}

/** What runs and stages may begin as (L2). */
export const INITIAL_STATUSES = ['PENDING', 'INITIALIZING', 'RUNNING'] as const;
export type InitialStatus = (typeof INITIAL_STATUSES)[number];

/** Where something has ended. */
export const TERMINAL_STATUSES: readonly Status[] = ['COMPLETED', 'FAILED', 'CANCELLED'];

export function isTerminal(status: Status): status is SealStatus {
  return TERMINAL_STATUSES.includes(status);
}

export const VERBS = ['start', 'pause', 'resume', 'complete', 'fail', 'cancel', 'reopen'] as const;
export type Verb = (typeof VERBS)[number];

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

/** L2: the legal moves of each noun. A run ends from every open status. Environments do not reopen: no RPC asks for it. */
export const MOVES = Object.freeze({
  run: { ...SHARED_MOVES, complete: { from: OPEN, to: 'COMPLETED' } },
  stage: SHARED_MOVES,
  environment: SHARED_MOVES,
} as const satisfies Record<string, Readonly<Record<Verb, Move>>>);

/** What a terminal verb leaves behind: asked for again, it must be the same (L5). */
export interface Outcome {
  readonly message: string;
  readonly resultJson: string;
}

/**
 * L5: the status that a verb leads to; undefined where it is in effect already and nothing is to be written.
 * Errors: RESULT_CONFLICT (in effect, with another result), ILLEGAL_TRANSITION.
 */
export function decideMove(
  noun: keyof typeof NOUNS,
  status: Status,
  stored: Outcome,
  verb: Verb,
  said: Outcome,
): Status | undefined {
  const { from, to }: Move = MOVES[noun][verb];
  if (from.includes(status)) return to;
  const name = `${verb[0]?.toUpperCase()}${verb.slice(1)}${NOUNS[noun]}`;
  const metadata = { status, verb };
  if (status !== to) {
    throw new AnabranchError(
      'ILLEGAL_TRANSITION',
      `${name} needs ${noun === 'environment' ? 'an' : 'a'} ${noun} that is ${listed(from)}; this one is ${status}.`,
      { metadata },
    );
  }
  if (isTerminal(to) && (stored.message !== said.message || stored.resultJson !== said.resultJson)) {
    throw new AnabranchError(
      'RESULT_CONFLICT',
      `This ${noun} is ${status} already, with another message or result: what has ended stays as it ended${noun === 'environment' ? '' : ', unless it is reopened'}.`,
      { metadata },
    );
  }
  return undefined;
}

const NOUNS = { run: 'Run', stage: 'Stage', environment: 'Environment' } as const;

function listed(statuses: readonly Status[]): string {
  return statuses.length === 1 ? `${statuses[0]}` : `${statuses.slice(0, -1).join(', ')} or ${statuses.at(-1)}`;
}
