import type { Caller } from '../../domain/caller.ts';
import { invalidField } from '../../domain/errors.ts';
import { parseUuid } from '../../domain/ids.ts';
import type { SealStatus } from '../../domain/lifecycle.ts';
import { LIMITS } from '../../domain/limits.ts';
import type { Rollout, RolloutResult } from '../../domain/rollout.ts';
import { requireJson, requireText } from '../../domain/text.ts';
import type { AttemptReport, NewValidation, RolloutEnd, RolloutSaid } from '../../store/contract/rollout.ts';
import type { App } from '../app.ts';
import { requireNames } from '../run/fields.ts';
import { requireMetrics } from '../trajectory/incoming.ts';
import { requireToken, type TokenArgs } from './lease.ts';
import { requireNewValidation } from './validation.ts';

export interface RolloutMoveArgs extends TokenArgs {
  readonly said: RolloutSaid;
}

/** L3. Errors: ROLLOUT_NOT_FOUND, LEASE_LOST, ILLEGAL_TRANSITION. */
export async function startRollout(app: App, caller: Caller, args: RolloutMoveArgs): Promise<Rollout> {
  return app.store.startRollout(caller, requireToken(args), requireRolloutSaid(args.said));
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
  const { refundAttempt, report } = args;
  const said = { ...requireRolloutSaid(args.said), refundAttempt };
  return app.store.releaseRollout(caller, requireToken(args), said, requireReport(report));
}

/** L3. Errors: ROLLOUT_NOT_FOUND, LEASE_LOST, ILLEGAL_TRANSITION. */
export async function retryRollout(app: App, caller: Caller, args: RolloutMoveArgs): Promise<Rollout> {
  return app.store.retryRollout(caller, requireToken(args), requireRolloutSaid(args.said));
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
  const end: RolloutEnd = {
    id: parseUuid(args.rolloutId, 'rollout_id'),
    status,
    attempt,
    said: requireRolloutSaid(args.said),
    result,
    expectedNextStepNumber,
    ...requireReport(report),
  };
  return app.store.endRollout(caller, end);
}

function requireReport({ validations, metrics, timings }: AttemptReport): AttemptReport {
  requireMetrics(metrics, 'metrics');
  requireNames(timings, 'timings', LIMITS.timings);
  return { validations: requireValidations(validations), metrics, timings };
}

/** What a verb says beside itself. */
function requireRolloutSaid(said: RolloutSaid): RolloutSaid {
  requireText(said.message, 'message');
  requireJson(said.metadataJson, 'metadata_json');
  if (said.phase !== undefined) requireText(said.phase, 'phase');
  return said;
}

function requireResult({ errors, summaryJson }: RolloutResult): void {
  for (const [i, error] of errors.entries()) requireText(error, `result.errors[${i}]`);
  const bytes = errors.reduce((sum, error) => sum + Buffer.byteLength(error), 0);
  if (bytes > LIMITS.resultErrorBytes) {
    throw invalidField('result.errors', `must have at most ${LIMITS.resultErrorBytes} bytes together, not ${bytes}`);
  }
  requireJson(summaryJson, 'result.summary_json');
}

/** Each name once. */
function requireValidations(validations: readonly NewValidation[]): NewValidation[] {
  const seen = new Set<string>();
  return validations.map((validation, i) => {
    const field = `validations[${i}]`;
    const checked = requireNewValidation(validation, field);
    if (seen.has(checked.name)) {
      throw invalidField(
        `${field}.name`,
        `must not be ${JSON.stringify(checked.name)} again: an attempt has one validation of each name`,
      );
    }
    seen.add(checked.name);
    return checked;
  });
}
