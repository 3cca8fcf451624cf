import type { Caller } from '../../domain/caller.ts';
import { invalidField } from '../../domain/errors.ts';
import type { SealStatus } from '../../domain/lifecycle.ts';
import { LIMITS } from '../../domain/limits.ts';
import type { Rollout, RolloutResult } from '../../domain/rollout.ts';
import type { AttemptReport, NewValidation, RolloutEnd, RolloutSaid } from '../../store/contract/rollout.ts';
import type { App } from '../app.ts';
import { type TokenArgs, tokenOf } from './lease.ts';

export interface RolloutMoveArgs extends TokenArgs {
  readonly said: RolloutSaid;
}

/** L3. Errors: ROLLOUT_NOT_FOUND, LEASE_LOST, ILLEGAL_TRANSITION. */
export async function startRollout(app: App, caller: Caller, args: RolloutMoveArgs): Promise<Rollout> {
  return app.store.startRollout(caller, tokenOf(args), args.said);
}

export interface ReleaseRolloutArgs extends RolloutMoveArgs {
  readonly refundAttempt: boolean;
  readonly report: AttemptReport;
}

/**
 * L3, Q1: back to the queue, or FAILED after the last attempt, with what the worker reports of the attempt.
 * Errors: ROLLOUT_NOT_FOUND, LEASE_LOST, ILLEGAL_TRANSITION, RESULT_CONFLICT.
 */
export async function releaseRollout(app: App, caller: Caller, args: ReleaseRolloutArgs): Promise<Rollout> {
  const { said, refundAttempt, report } = args;
  requireDistinct(report.validations);
  return app.store.releaseRollout(caller, tokenOf(args), { ...said, refundAttempt }, report);
}

/** L3. Errors: ROLLOUT_NOT_FOUND, LEASE_LOST, ILLEGAL_TRANSITION. */
export async function retryRollout(app: App, caller: Caller, args: RolloutMoveArgs): Promise<Rollout> {
  return app.store.retryRollout(caller, tokenOf(args), args.said);
}

export interface RolloutEndArgs {
  readonly rolloutId: string;
  readonly status: SealStatus;
  /** Undefined: whoever holds it. */
  readonly attempt: number | undefined;
  readonly said: RolloutSaid;
  readonly result?: RolloutResult | undefined;
  readonly expectedNextStepNumber?: bigint | undefined;
  readonly report?: AttemptReport;
}

const NO_REPORT: AttemptReport = Object.freeze({ validations: [], metrics: new Map(), timings: new Map() });

/**
 * L3, Q1: the end of a rollout with all that came of it, in one transaction.
 * Errors: ROLLOUT_NOT_FOUND, LEASE_LOST, UNEXPECTED_POSITION, ILLEGAL_TRANSITION, RESULT_CONFLICT.
 */
export async function endRollout(app: App, caller: Caller, args: RolloutEndArgs): Promise<Rollout> {
  const { status, attempt, result, expectedNextStepNumber, report = NO_REPORT } = args;
  if (result !== undefined) requireResult(result);
  requireDistinct(report.validations);
  const end: RolloutEnd = {
    id: args.rolloutId,
    status,
    attempt,
    said: args.said,
    result,
    expectedNextStepNumber,
    ...report,
  };
  return app.store.endRollout(caller, end);
}

function requireResult({ errors }: RolloutResult): void {
  const bytes = errors.reduce((sum, error) => sum + Buffer.byteLength(error), 0);
  if (bytes > LIMITS.resultErrorBytes) {
    throw invalidField('result.errors', `must have at most ${LIMITS.resultErrorBytes} bytes together, not ${bytes}`);
  }
}

/** Each name once. */
function requireDistinct(validations: readonly NewValidation[]): void {
  const seen = new Set<string>();
  for (const [i, { name }] of validations.entries()) {
    if (seen.has(name)) {
      const wanted = `must not be ${JSON.stringify(name)} again: an attempt has one validation of each name`;
      throw invalidField(`validations[${i}].name`, wanted);
    }
    seen.add(name);
  }
}
