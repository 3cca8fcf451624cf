import type { Caller } from '../../../../domain/caller.ts';
import { runHint, trajectoryHint } from '../../../../domain/change.ts';
import { endDigest } from '../../../../domain/end_digest.ts';
import { AnabranchError, rolloutNotFound } from '../../../../domain/errors.ts';
import type { Outcome, SealStatus, Status } from '../../../../domain/lifecycle.ts';
import type { Rollout, RolloutVerb } from '../../../../domain/rollout.ts';
import { decideRelease, decideRolloutMove, requireClaimer } from '../../../../domain/rollout_moves.ts';
import type {
  AttemptReport,
  LeaseToken,
  ReleaseDetails,
  RolloutEnd,
  RolloutMoveDetails,
} from '../../../contract/rollout.ts';
import { keepRunOf } from '../../kit/by_id.ts';
import type { Engine, LockedHead } from '../../kit/engine.ts';
import { firstGivenAfter } from '../../kit/given_fields.ts';
import { messageOfEnd, recordStatus, type StatusEntity } from '../../kit/status/status_changes.ts';
import { type CallerTransaction, type NamespaceTransaction, type Transaction, writeAs } from '../../kit/transaction.ts';
import { bindFlag, bindReal } from '../../kit/values.ts';
import {
  type AttemptEnd,
  type AttemptRow,
  type AttemptValues,
  attemptValuesOf,
  changeAttempt,
  lockAttempts,
  NO_ATTEMPT_VALUES,
  readAttemptEnds,
  readAttemptRow,
  rewardAt,
  sealAttempts,
  timingAt,
  turnsAt,
} from '../attempt/attempts.ts';
import { writeReport } from '../attempt/validations.ts';
import { countInGroups } from '../group/groups.ts';
import { writeWatched } from '../watched_row.ts';
import { applySuccess, requeue } from './requeueing.ts';
import { bindResult, findRollout, holdingOf, type LockedRollout, lockRollout, readFlag, readWritten } from './rows.ts';

const NOTHING_SAID: Outcome = { message: '', resultJson: '' };

function entityOf({ run, key }: LockedRollout): StatusEntity {
  return { tree: run, noun: 'ROLLOUT', key };
}

/** L5: records the move of one rollout in the transaction that makes it. */
async function recordMove(
  tx: CallerTransaction,
  row: LockedRollout,
  to: Status,
  details: RolloutMoveDetails,
  phase: string,
): Promise<void> {
  const { message, metadataJson } = details;
  const move = { ordinal: row.status_changes, from: row.status as Status, to, message, metadataJson, phase };
  await recordStatus(tx, entityOf(row), move);
}

/**
 * Changes a locked rollout. Announces its run, and the trajectories that `change` returns. `change` returns undefined
 * if the verb is already in effect (L5).
 */
async function changeRollout(
  engine: Engine,
  caller: Caller,
  id: string,
  change: (tx: CallerTransaction, row: LockedRollout) => Promise<readonly (bigint | null)[] | undefined>,
  lock = lockRollout,
): Promise<Rollout> {
  const { rollout, run, changed } = await writeAs(engine, caller, async (tx) => {
    const row = await lock(tx, id);
    const trajectories = await change(tx, row);
    return { rollout: await readWritten(tx, row), run: row.run, changed: trajectories?.filter((key) => key !== null) };
  });
  if (changed !== undefined) engine.changes.announce([runHint(run), ...changed.map(trajectoryHint)]);
  return rollout;
}

export async function startRollout(
  engine: Engine,
  caller: Caller,
  token: LeaseToken,
  details: RolloutMoveDetails,
): Promise<Rollout> {
  return changeRollout(engine, caller, token.id, async (tx, row) => {
    requireClaimer(holdingOf(row), token.attempt, caller);
    const to = decideRolloutMove(holdingOf(row), NOTHING_SAID, 'start', token.attempt, NOTHING_SAID);
    if (to === undefined) return undefined;
    const now = await tx.readNow();
    const phase = details.phase ?? row.phase;
    await writeWatched(tx, 'rollouts', row.key, {
      status: to,
      status_message: details.message,
      phase,
      start_time: now,
      status_changes: row.status_changes + 1n,
    });
    await tx.db
      .updateTable('attempts')
      .set({ status: to, start_time: now })
      .where('rollout', '=', row.key)
      .where('number', '=', row.attempt)
      .execute();
    await recordMove(tx, row, to, details, phase);
    return [];
  });
}

export async function releaseRollout(
  engine: Engine,
  caller: Caller,
  token: LeaseToken,
  { message, metadataJson, refundAttempt }: ReleaseDetails,
  report: AttemptReport,
): Promise<Rollout> {
  const digest = endDigest({ message, result: undefined, refundAttempt, ...report });
  return changeRollout(engine, caller, token.id, async (tx, row) => {
    requireClaimer(holdingOf(row), token.attempt, caller);
    const attempt = row.attempt === 0n ? undefined : await readAttemptRow(tx, row.key, row.attempt);
    const details = { digest, reports: refundAttempt || isReport(report) };
    const moves = decideRelease(holdingOf(row), attempt?.end_digest ?? '', token.attempt, details);
    if (moves && attempt !== undefined) {
      const heads = await lockAttempts(tx, [row], 'bounded');
      await tx.readNow();
      const reported = await writeReport(tx, row, attempt, report);
      const shown = await changeAttempt(tx, row, attempt, { ...reported, end_digest: digest });
      const head = heads.get(row.key);
      await requeue(tx, [{ caller, row: { ...row, ...shown }, head, message, metadataJson, refund: refundAttempt }]);
    }
    return moves ? [row.trajectory] : undefined;
  });
}

function isReport({ validations, metrics, timings }: AttemptReport): boolean {
  return validations.length > 0 || metrics.size > 0 || timings.size > 0;
}

export async function retryRollout(
  engine: Engine,
  caller: Caller,
  token: LeaseToken,
  details: RolloutMoveDetails,
): Promise<Rollout> {
  const retry = async (tx: CallerTransaction, row: LockedRollout) => {
    const to = decideRolloutMove(holdingOf(row), NOTHING_SAID, 'retry', token.attempt, NOTHING_SAID);
    if (to === undefined) return undefined;
    const now = await tx.readNow();
    const attempts = row.attempt - row.refunded_attempts + 1n;
    // The trajectory of the last attempt was sealed when the attempt ended.
    await writeWatched(tx, 'rollouts', row.key, {
      ...NO_ATTEMPT_VALUES,
      status: to,
      status_message: details.message,
      phase: '',
      ...(row.max_attempts < attempts
        ? { max_attempts: attempts, ...firstGivenAfter(row, { max_attempts: attempts }) }
        : {}),
      worker_id: '',
      lease_ms: 0n,
      lease_end_time: null,
      claimable_time: now,
      end_time: null,
      status_changes: row.status_changes + 1n,
    });
    await recordMove(tx, row, to, details, '');
    const triedRollouts = row.attempt > 0n ? -1n : 0n;
    const counts = { terminalRollouts: -1n, triedRollouts, terminalTurns: -row.turns };
    await countInGroups(tx, new Map([[row.group_key, counts]]));
    return [];
  };
  return changeRollout(engine, caller, token.id, retry, lockTerminal);
}

/**
 * Locks the run against deletion, then the rollout. A deletion locks only rollouts that are not terminal, and this one
 * is about to become PENDING. Errors: ROLLOUT_NOT_FOUND.
 */
async function lockTerminal(tx: NamespaceTransaction, id: string): Promise<LockedRollout> {
  const seen = await findRollout(tx, { id }, 'BASIC');
  if (seen === undefined || !(await keepRunOf(tx, seen))) throw rolloutNotFound(id);
  return lockRollout(tx, id);
}

const VERBS = { COMPLETED: 'complete', FAILED: 'fail', CANCELLED: 'cancel' } as const satisfies Record<
  SealStatus,
  RolloutVerb
>;

/**
 * Completes, fails or cancels a rollout (L3) with all its effects in one transaction. Locks are taken in the order
 * rollout, trajectory, siblings, group.
 */
export async function endRollout(engine: Engine, caller: Caller, end: RolloutEnd): Promise<Rollout> {
  return changeRollout(engine, caller, end.id, async (tx, row) => {
    requireClaimer(holdingOf(row), end.attempt, caller);
    const digest = end.status === 'CANCELLED' ? '' : endDigest({ ...end, message: end.details.message });
    const ending = { ...end, digest };
    const attempt = row.attempt === 0n ? undefined : await readAttemptRow(tx, row.key, row.attempt);
    const { stored, requested } = await outcomesOf(tx, row, attempt, ending);
    const to = decideRolloutMove(holdingOf(row), stored, VERBS[end.status], end.attempt, requested);
    if (to === undefined) return undefined;
    await endLocked(tx, row, attempt, ending);
    return [row.trajectory];
  });
}

/** An end with the digest by which a repeated call is compared; empty for a cancellation. */
interface DigestedEnd extends RolloutEnd {
  readonly digest: string;
}

/** L5: returns the stored and the requested outcome, to compare a repeated end. */
async function outcomesOf(
  tx: Transaction,
  row: LockedRollout,
  attempt: AttemptRow | undefined,
  { status, details: requested, digest }: DigestedEnd,
): Promise<{ readonly stored: Outcome; readonly requested: Outcome }> {
  const message = await messageOfEnd(tx, entityOf(row), row);
  const resultJson = status === 'CANCELLED' ? '' : (attempt?.end_digest ?? '');
  return { stored: { message, resultJson }, requested: { message: requested.message, resultJson: digest } };
}

async function endLocked(
  tx: CallerTransaction,
  row: LockedRollout,
  attempt: AttemptRow | undefined,
  end: DigestedEnd,
): Promise<void> {
  const live = attempt !== undefined && row.status !== 'PENDING';
  const heads = await lockAttempts(tx, [row], 'bounded');
  const head = heads.get(row.key);
  requirePosition(head, end.expectedNextStepNumber);
  const came = live ? (await readAttemptEnds(tx, [row.key])).get(row.key) : undefined;
  const now = await tx.readNow();
  const shown = live
    ? await endAttempt(tx, row, attempt, end, came)
    : attempt === undefined
      ? NO_ATTEMPT_VALUES
      : attemptValuesOf(attempt);
  await writeWatched(tx, 'rollouts', row.key, {
    ...shown,
    status: end.status,
    status_message: end.details.message,
    phase: end.details.phase ?? row.phase,
    worker_id: '',
    lease_end_time: null,
    attempt_end_time: null,
    // After a cancellation, no attempt is the holder. After another end, the holder may repeat the call.
    ...(end.status === 'CANCELLED' ? { lease_ms: 0n } : {}),
    end_time: now,
    status_changes: row.status_changes + 1n,
  });
  await recordMove(tx, row, end.status, end.details, end.details.phase ?? row.phase);
  if (live) {
    const seal = { caller: tx.caller, rollout: row, head, status: end.status, message: end.details.message };
    await sealAttempts(tx, [seal]);
  }
  if (end.status === 'COMPLETED' && readFlag(shown.success) === true) await applySuccess(tx, row);
  const triedRollouts = row.attempt > 0n ? 1n : 0n;
  const counts = { terminalRollouts: 1n, triedRollouts, terminalTurns: shown.turns, ...timingAt(came) };
  await countInGroups(tx, new Map([[row.group_key, counts]]));
}

/**
 * Ends the attempt that holds a live rollout, with its result and report. Returns the values that the rollout's row
 * copies.
 */
async function endAttempt(
  tx: Transaction,
  row: LockedRollout,
  attempt: AttemptRow,
  end: DigestedEnd,
  came: AttemptEnd | undefined,
): Promise<AttemptValues> {
  const reported = await writeReport(tx, row, attempt, end);
  const reward = end.result?.reward;
  const shown = await changeAttempt(tx, { ...row, status: end.status }, attempt, {
    status: end.status,
    message: end.details.message,
    end_time: tx.now,
    result: bindResult(end.result),
    summary_json: end.result?.summaryJson ?? '',
    result_success: bindFlag(end.result?.success),
    reward: reward === undefined ? rewardAt(came) : bindReal(reward),
    turns: turnsAt(came),
    ...reported,
    end_digest: end.digest,
  });
  return shown ?? NO_ATTEMPT_VALUES;
}

function requirePosition(head: LockedHead | undefined, expected: bigint | undefined): void {
  if (expected === undefined || expected === head?.nextStepNumber) return;
  const ends =
    head === undefined
      ? `the attempt's trajectory was deleted`
      : `the attempt's trajectory ends at ${head.nextStepNumber}`;
  throw new AnabranchError(
    'UNEXPECTED_POSITION',
    `expected_next_step_number is ${expected}, but ${ends}: wait until all turns are acked, then retry the call.`,
    { metadata: { next_step_number: `${head?.nextStepNumber ?? 0n}` } },
  );
}
