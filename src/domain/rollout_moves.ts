import type { Caller } from './caller.ts';
import { AnabranchError } from './errors.ts';
import { isTerminal, type Outcome, type Status } from './lifecycle.ts';
import { ROLLOUT_MOVES, type RolloutVerb } from './rollout.ts';

/** The fields of a rollout that decide which moves are legal. */
export interface RolloutHolding {
  readonly id: string;
  readonly status: Status;
  readonly attempt: number;
  /** Whether the current attempt holds the rollout: it was claimed, and not requeued, retried or cancelled since. */
  readonly hasHolder: boolean;
  /** The principal that has claimed the current attempt. */
  readonly claimer: string;
}

/**
 * N2: rejects a worker that names the current attempt, and has not claimed it. Attempts before it are rejected in any
 * case. Errors: PERMISSION_DENIED.
 */
export function requireClaimer(rollout: RolloutHolding, attempt: number | undefined, caller: Caller): void {
  if (isClaimer(rollout, caller) || (attempt !== undefined && attempt !== rollout.attempt)) return;
  throw new AnabranchError(
    'PERMISSION_DENIED',
    `Another principal has claimed rollout ${rollout.id}: only it, or a key with the role WRITE, may move it.`,
    { metadata: { rollout: rollout.id } },
  );
}

export function isClaimer({ claimer }: Pick<RolloutHolding, 'claimer'>, caller: Caller): boolean {
  return caller.ownClaimsOnly !== true || claimer === caller.actor;
}

/**
 * F2, Q2: rejects an attempt that does not hold the rollout, whatever the clock says. Undefined accepts any holder.
 * Errors: LEASE_LOST.
 */
export function requireLease(rollout: RolloutHolding, attempt: number | undefined): void {
  if (attempt === undefined || (attempt === rollout.attempt && rollout.hasHolder)) return;
  throw leaseLost(rollout, attempt);
}

/**
 * M3: returns the attempt that a verdict, metrics, timings or environments belong to: the given attempt, which may have
 * ended, else the last one that began. Errors: NO_ATTEMPT.
 */
export function requireBegun(rollout: Pick<RolloutHolding, 'id' | 'attempt'>, attempt: number | undefined): number {
  const { id, attempt: last } = rollout;
  const wanted = attempt ?? last;
  if (wanted >= 1 && wanted <= last) return wanted;
  const message =
    last === 0
      ? `Rollout ${id} has no attempt yet: claim it first, because verdicts, metrics, timings and environments belong to an attempt.`
      : `\`attempt\` must be 1 to ${last} (the last attempt of rollout ${id} that began), got ${wanted}.`;
  throw new AnabranchError('NO_ATTEMPT', message, { metadata: { rollout: id, attempt: `${last}` } });
}

/**
 * L3, L5: returns the status that a verb leads to. Returns undefined if the status is in effect and nothing must be
 * written. `attempt` is undefined for Cancel, which does not depend on the holder. Errors: LEASE_LOST, RESULT_CONFLICT,
 * ILLEGAL_TRANSITION.
 */
export function decideRolloutMove(
  rollout: RolloutHolding,
  stored: Outcome,
  verb: RolloutVerb,
  attempt: number | undefined,
  outcome: Outcome,
): Status | undefined {
  const { status } = rollout;
  if (attempt !== undefined) {
    if (attempt !== rollout.attempt) throw leaseLost(rollout, attempt);
    // The rollout is released or queued already.
    if (verb === 'release' && !rollout.hasHolder) return undefined;
    if (verb === 'retry' && status === 'PENDING') return undefined;
    if (verb !== 'retry') requireLease(rollout, attempt);
  }
  const { from, to } = ROLLOUT_MOVES[verb];
  if (from.includes(status)) return to;
  const metadata = { status, verb };
  if (status !== to) {
    throw new AnabranchError(
      'ILLEGAL_TRANSITION',
      `${nameOf(verb)} requires a rollout that is ${from.join(' or ')}; this one is ${status}.`,
      { metadata },
    );
  }
  if (isTerminal(to) && (stored.message !== outcome.message || stored.resultJson !== outcome.resultJson)) {
    throw resultConflict(rollout, verb);
  }
  return undefined;
}

/**
 * L5: returns whether a release must be written; false if the attempt no longer holds the rollout. `endedBy` is the
 * stored digest of the request that ended the attempt, or empty if no request of its worker did. In that case any
 * report or refund is rejected, so that none is lost unnoticed. Errors: LEASE_LOST, RESULT_CONFLICT,
 * ILLEGAL_TRANSITION.
 */
export function decideRelease(
  rollout: RolloutHolding,
  endedBy: string,
  attempt: number,
  { digest, reports }: { readonly digest: string; readonly reports: boolean },
): boolean {
  if (attempt === rollout.attempt && !rollout.hasHolder) {
    if (endedBy === '' && reports) throw leaseLost(rollout, attempt);
    if (endedBy !== '' && endedBy !== digest) throw resultConflict(rollout, 'release');
  }
  const nothing = { message: '', resultJson: '' };
  return decideRolloutMove(rollout, nothing, 'release', attempt, nothing) !== undefined;
}

function resultConflict({ status }: Pick<RolloutHolding, 'status'>, verb: RolloutVerb): AnabranchError {
  const compared = verb === 'release' ? 'refund_attempt' : 'result';
  return new AnabranchError(
    'RESULT_CONFLICT',
    `This rollout is ${status}: its attempt was ended by a request with another message, ${compared}, metrics, timings or validations. Repeat that request unchanged${verb === 'release' ? '' : ', or retry the rollout'}.`,
    { metadata: { status, verb } },
  );
}

function nameOf(verb: RolloutVerb): string {
  return `${verb[0]?.toUpperCase()}${verb.slice(1)}Rollout`;
}

function leaseLost({ id, status, attempt: current }: RolloutHolding, attempt: number): AnabranchError {
  const now = current === attempt ? 'that attempt no longer holds it' : `its current attempt is ${current}`;
  return new AnabranchError(
    'LEASE_LOST',
    `Attempt ${attempt} does not hold rollout ${id}: it is ${status}, and ${now}. Stop working on it; ClaimRollouts returns other rollouts.`,
    { metadata: { rollout: id, attempt: `${current}`, status } },
  );
}
