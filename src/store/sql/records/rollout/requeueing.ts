import { sql } from 'kysely';
import type { Caller } from '../../../../domain/caller.ts';
import { formatInstant, parseInstant } from '../../../../domain/instant.ts';
import { NANOS_PER_MS } from '../../../../domain/lease.ts';
import { isTerminal, type Status } from '../../../../domain/lifecycle.ts';
import { type OnSuccess, requeued, retryDelayAfter, rolloutSuccess } from '../../../../domain/rollout.ts';
import type { LockedHead } from '../../kit/engine.ts';
import { recordStatuses, serverIn } from '../../kit/status/status_changes.ts';
import { ROLLOUTS } from '../../kit/tables/rollouts.ts';
import { rowUpdate, type UpdateOf } from '../../kit/tables/table.ts';
import { lockPolicies, type Transaction } from '../../kit/transaction.ts';
import { bindFlag } from '../../kit/values.ts';
import {
  ATTEMPT_COLUMNS,
  type AttemptEnd,
  type AttemptValues,
  attemptValuesOf,
  endAttempts,
  NO_ATTEMPT_VALUES,
  readAttemptEnds,
  readAttemptValues,
  rewardAt,
  timingAt,
  turnsAt,
} from '../attempt/attempts.ts';
import { countInGroups, type GroupCount } from '../group/groups.ts';
import { type LockedRollout, readFlag } from './rows.ts';

/** A locked rollout whose attempt ends, with the message of its move. */
export interface EndingAttempt {
  readonly caller: Caller;
  readonly row: LockedRollout;
  readonly head: LockedHead | undefined;
  readonly message: string;
  readonly metadataJson: string;
  /** If true, the attempt does not count towards max_attempts and causes no delay. */
  readonly refund?: boolean;
}

/**
 * Q1, Q3: ends the attempts of rollouts as FAILED and requeues the rollouts. The number of statements does not grow
 * with the rollouts.
 */
export async function requeue(tx: Transaction, ending: readonly EndingAttempt[]): Promise<void> {
  if (ending.length === 0) return;
  const keys = ending.map(({ row }) => row.key);
  const ends = await readAttemptEnds(tx, keys);
  const policies = await readPolicies(
    tx,
    ending.map(({ row }) => row.group_key),
  );
  const seals = ending.map(({ caller, row, head, message }) => {
    return { caller, rollout: row, head, status: 'FAILED', message, end: ends.get(row.key) } as const;
  });
  await endAttempts(tx, seals);
  const moves = ending.map((each): UnheldMove => {
    const { row, refund = false } = each;
    const policy = policies.get(row.group_key) ?? { onSuccess: 'CONTINUE', succeeded: false };
    const counted = Number(row.attempt - row.refunded_attempts) - (refund ? 1 : 0);
    const to = requeued(counted, Number(row.max_attempts), policy.onSuccess, policy.succeeded);
    const delayMs = refund ? 0 : retryDelayAfter(counted, Number(row.retry_delay_ms));
    const end = ends.get(row.key);
    const shown =
      to === 'PENDING' ? NO_ATTEMPT_VALUES : { ...attemptValuesOf(row), reward: rewardAt(end), turns: turnsAt(end) };
    return { ...each, to, delayMs, shown, ended: end };
  });
  await moveMany(tx, moves);
}

interface Policy {
  readonly onSuccess: OnSuccess;
  readonly succeeded: boolean;
}

/** Reads the policies of groups, and locks those with CANCEL_PENDING before their successes are read. */
async function readPolicies(tx: Transaction, groups: readonly bigint[]): Promise<Map<bigint, Policy>> {
  const { engine } = tx;
  const cancelling = await tx.db
    .selectFrom('groups')
    .select('key')
    .where(engine.sql.among(sql.ref('key'), [...new Set(groups)]))
    .where('on_success', '=', 'CANCEL_PENDING')
    .orderBy('key')
    .execute();
  if (cancelling.length === 0) return new Map();
  const keys = cancelling.map(({ key }) => key);
  await lockPolicies(tx, keys);
  const successes = await tx.db
    .selectFrom('rollouts')
    .select('group_key')
    .distinct()
    .where(engine.sql.among(sql.ref('group_key'), keys))
    .where('status', '=', 'COMPLETED')
    .where('success', '=', 1)
    .execute();
  const succeeded = new Set(successes.map(({ group_key }) => group_key));
  return new Map(keys.map((key) => [key, { onSuccess: 'CANCEL_PENDING', succeeded: succeeded.has(key) }]));
}

export interface UnheldMove extends EndingAttempt {
  readonly to: 'PENDING' | 'FAILED' | 'CANCELLED';
  /** Time before the rollout can be claimed again, if it becomes PENDING. */
  readonly delayMs?: number;
  /** Values of the latest attempt that the rollout's row copies. */
  readonly shown: AttemptValues;
  /**
   * Attempt that ends with this move; undefined if the rollout was PENDING, or if the attempt's trajectory was deleted.
   */
  readonly ended: AttemptEnd | undefined;
  /** Default: empty. */
  readonly phase?: string;
}

const MOVE = rowUpdate(
  ROLLOUTS,
  ['key'],
  [
    'status',
    'status_message',
    'phase',
    'refunded_attempts',
    'worker_id',
    'lease_ms',
    'lease_end_time',
    'attempt_end_time',
    ...ATTEMPT_COLUMNS,
    'claimable_time',
    'end_time',
    'update_time',
    'status_changes',
    'revision',
    'mark',
  ],
);

/**
 * Moves locked rollouts that no worker holds afterwards. Writes their StatusChanges and the counters of their groups.
 */
export async function moveMany(tx: Transaction, moves: readonly UnheldMove[]): Promise<void> {
  if (moves.length === 0) return;
  const mark = await tx.readMark();
  const rows = moves.map((move) => movedRow(move, tx.now, mark));
  await tx.engine.bulk.update(tx.db, MOVE, rows);
  await recordStatuses(
    tx,
    moves.map(({ caller, row, to, message, metadataJson, phase = '' }) => ({
      caller,
      entity: { tree: row.run, noun: 'ROLLOUT', key: row.key },
      move: { ordinal: row.status_changes, from: row.status as Status, to, message, metadataJson, phase },
    })),
  );
  await countInGroups(tx, countsOf(moves));
}

function movedRow(move: UnheldMove, now: string, mark: bigint): UpdateOf<typeof MOVE> {
  const { row, to, message, phase = '', refund, delayMs = 0, shown } = move;
  const claimable = formatInstant(parseInstant(now) + BigInt(delayMs) * NANOS_PER_MS, 6);
  return {
    key: row.key,
    status: to,
    status_message: message,
    phase,
    refunded_attempts: row.refunded_attempts + (refund === true ? 1n : 0n),
    worker_id: '',
    lease_ms: 0n,
    lease_end_time: null,
    attempt_end_time: null,
    ...shown,
    success: bindFlag(rolloutSuccess(to, readFlag(shown.success))),
    claimable_time: isTerminal(to) ? row.claimable_time : claimable,
    end_time: isTerminal(to) ? now : null,
    update_time: now,
    status_changes: row.status_changes + 1n,
    revision: row.revision + 1n,
    mark,
  };
}

/** The turns of every ended attempt are measured, even if the rollout is PENDING again. */
function countsOf(moves: readonly UnheldMove[]): Map<bigint, GroupCount> {
  const counts = new Map<bigint, GroupCount>();
  for (const { row, to, shown, ended } of moves) {
    const before = counts.get(row.group_key) ?? NOTHING;
    const { timedTurns, turnSeconds } = timingAt(ended);
    counts.set(row.group_key, {
      rollouts: 0n,
      terminalRollouts: before.terminalRollouts + (isTerminal(to) ? 1n : 0n),
      triedRollouts: before.triedRollouts + (isTerminal(to) && row.attempt > 0n ? 1n : 0n),
      terminalTurns: before.terminalTurns + (isTerminal(to) ? shown.turns : 0n),
      timedTurns: before.timedTurns + timedTurns,
      turnSeconds: before.turnSeconds + turnSeconds,
    });
  }
  return counts;
}

const NOTHING: GroupCount = Object.freeze({
  rollouts: 0n,
  terminalRollouts: 0n,
  triedRollouts: 0n,
  terminalTurns: 0n,
  timedTurns: 0n,
  turnSeconds: 0,
});

/**
 * Applies CANCEL_PENDING when a rollout has become a success: cancels the PENDING rollouts of its group. A sibling that
 * is requeued later sees the success. The caller announces the run.
 */
export async function applySuccess(tx: Transaction, success: LockedRollout): Promise<void> {
  if (!(await cancelsPending(tx, success))) return;
  await lockPolicies(tx, [success.group_key]);
  await cancelPending(tx, success);
}

async function cancelsPending(tx: Transaction, { group_key }: LockedRollout): Promise<boolean> {
  const group = await tx.db.selectFrom('groups').select('on_success').where('key', '=', group_key).executeTakeFirst();
  return group?.on_success === 'CANCEL_PENDING';
}

async function cancelPending(tx: Transaction, success: LockedRollout): Promise<void> {
  const query = tx.db
    .selectFrom('rollouts')
    .selectAll()
    .where('group_key', '=', success.group_key)
    .where(sql<boolean>`status = 'PENDING'`)
    .orderBy('key');
  const rows = await tx.engine.locks.rows(query, 'write').execute();
  if (rows.length === 0) return;
  const shown = await readAttemptValues(tx, rows);
  const details = { message: `rollout ${success.number} of its group succeeded`, metadataJson: '', head: undefined };
  const caller = serverIn(success.namespace);
  const moves = rows.map((row) => {
    return { caller, row, ...details, to: 'CANCELLED', shown: shown(row.key), ended: undefined } as const;
  });
  await moveMany(tx, moves);
}
