import type { Caller } from '../../../../domain/caller.ts';
import { endDigest } from '../../../../domain/end_digest.ts';
import { rolloutNotFound } from '../../../../domain/errors.ts';
import type { Outcome, Status } from '../../../../domain/lifecycle.ts';
import type { Rollout, RolloutVerb } from '../../../../domain/rollout.ts';
import { decideRelease, decideRolloutMove } from '../../../../domain/rollout_moves.ts';
import type { AttemptReport, LeaseToken, ReleaseDetails, RolloutMoveDetails } from '../../../contract/rollout.ts';
import type { Engine } from '../../kit/engine.ts';
import { firstGivenAfter } from '../../kit/given_fields.ts';
import { keepRunOf } from '../../kit/run_keys.ts';
import { recordStatus, type StatusEntity } from '../../kit/status/status_changes.ts';
import { type CallerTransaction, type NamespaceTransaction, writeAs } from '../../kit/transaction.ts';
import { lockAttempts } from '../attempt/attempts.ts';
import { writeReport } from '../attempt/reports.ts';
import { changeAttempt, NO_ATTEMPT_VALUES, readAttemptRow } from '../attempt/rows.ts';
import { countInGroups } from '../group/counters.ts';
import { requeue } from './requeueing.ts';
import { findRollout, readWritten } from './rows.ts';
import { holdingOf, type LockedRollout, lockRollout, writeRollout } from './writing.ts';

const NOTHING_SAID: Outcome = { message: '', resultJson: '' };

export function entityOf({ run, key }: LockedRollout): StatusEntity {
  return { tree: run, noun: 'ROLLOUT', key };
}

/** L5: records the move of one rollout in the transaction that makes it. */
export async function recordMove(
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
 * Applies a verb to a rollout. `move` writes the new status and is not called if the verb is already in effect (L5).
 */
async function moved(
  engine: Engine,
  caller: Caller,
  token: LeaseToken,
  verb: Exclude<RolloutVerb, 'release'>,
  move: (tx: CallerTransaction, row: LockedRollout, to: Status) => Promise<readonly (bigint | null)[]>,
): Promise<Rollout> {
  const { rollout, changed } = await writeAs(engine, caller, async (tx) => {
    if (verb === 'retry') await keepTerminal(tx, token.id);
    const row = await lockRollout(tx, token.id);
    const to = decideRolloutMove(holdingOf(row), NOTHING_SAID, verb, token.attempt, NOTHING_SAID);
    const others = to === undefined ? undefined : await move(tx, row, to);
    const after = await readWritten(tx, row);
    return { rollout: after, changed: others === undefined ? [] : [row.run, ...others] };
  });
  engine.changes.announce(changed.filter((key) => key !== null));
  return rollout;
}

export async function startRollout(
  engine: Engine,
  caller: Caller,
  token: LeaseToken,
  details: RolloutMoveDetails,
): Promise<Rollout> {
  return moved(engine, caller, token, 'start', async (tx, row, to) => {
    const now = await tx.readNow();
    const phase = details.phase ?? row.phase;
    await writeRollout(tx, row.key, {
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
  const { rollout, changed } = await writeAs(engine, caller, async (tx) => {
    const row = await lockRollout(tx, token.id);
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
    const after = await readWritten(tx, row);
    return { rollout: after, changed: moves ? [row.run, row.trajectory] : [] };
  });
  engine.changes.announce(changed.filter((key) => key !== null));
  return rollout;
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
  return moved(engine, caller, token, 'retry', async (tx, row, to) => {
    const now = await tx.readNow();
    const attempts = row.attempt - row.refunded_attempts + 1n;
    // The trajectory of the last attempt was sealed when the attempt ended.
    await writeRollout(tx, row.key, {
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
  });
}

/**
 * Locks the run against deletion. A deletion locks only rollouts that are not terminal, and this one is about to become
 * PENDING. Errors: ROLLOUT_NOT_FOUND.
 */
async function keepTerminal(tx: NamespaceTransaction, id: string): Promise<void> {
  const seen = await findRollout(tx, { id }, 'BASIC');
  if (seen === undefined || !(await keepRunOf(tx, seen))) throw rolloutNotFound(id);
}
