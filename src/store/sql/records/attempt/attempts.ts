import { type Expression, type Selectable, sql, type Updateable } from 'kysely';
import type { Caller } from '../../../../domain/caller.ts';
import { parseInstant } from '../../../../domain/instant.ts';
import type { SealStatus, Status } from '../../../../domain/lifecycle.ts';
import { type Attempt, rolloutSuccess, verdict } from '../../../../domain/rollout.ts';
import type { Db, LockedHead } from '../../kit/engine.ts';
import { ATTEMPTS } from '../../kit/tables/attempts.ts';
import { rowUpdate } from '../../kit/tables/table.ts';
import type { AttemptsTable, RolloutsTable } from '../../kit/tables.ts';
import type { Transaction } from '../../kit/transaction.ts';
import {
  bindFlag,
  bindOptionalReal,
  readMetrics,
  readOptionalReal,
  readOptionalTime,
  readReal,
} from '../../kit/values.ts';
import { inLockOrder } from '../../log/append/heads.ts';
import { sealHeads } from '../../log/trajectory/sealing.ts';
import type { TimedTurns } from '../group/groups.ts';
import { type LockedRollout, lastAppend, readFlag, readResult, turnsOf } from '../rollout/rows.ts';
import { readTimings } from '../stage/rows.ts';

type Placed = Pick<LockedRollout, 'key' | 'tree' | 'trajectory'>;

/**
 * Locks the trajectories of the rollouts' current attempts and returns them by rollout key. The rollouts must be locked
 * first. Deleted trajectories are omitted. With `never`, trajectories that another transaction holds, for example for
 * an append, are omitted too.
 */
export async function lockAttempts(
  tx: Transaction,
  rollouts: readonly Placed[],
  wait: 'never' | 'bounded',
): Promise<Map<bigint, LockedHead>> {
  const of = new Map<bigint, bigint>();
  const refs = rollouts.flatMap(({ key, tree, trajectory }) => {
    if (tree === null || trajectory === null) return [];
    of.set(trajectory, key);
    return [{ tree, key: trajectory }];
  });
  if (refs.length === 0) return new Map();
  refs.sort(inLockOrder);
  const heads = await tx.lockHeads(refs, wait);
  return new Map(heads.flatMap((head) => (head.hidden ? [] : [[of.get(head.key) ?? 0n, head]])));
}

/** Totals of an attempt, read while its trajectory is locked. */
export interface AttemptEnd {
  readonly turns: bigint;
  /** Undefined if none of its own steps has a reward. */
  readonly reward: number | undefined;
  /** Undefined if no step was appended. */
  readonly lastAppendTime: string | undefined;
  readonly timing: TimedTurns;
}

/** Returns the totals by rollout key, without rollouts whose trajectory was deleted. */
export async function readAttemptEnds(tx: Transaction, rollouts: readonly bigint[]): Promise<Map<bigint, AttemptEnd>> {
  const rows = await tx.db
    .selectFrom('rollouts as r')
    .innerJoin('trajectories as t', (join) =>
      join.onRef('t.tree', '=', 'r.tree').onRef('t.key', '=', 'r.trajectory').on('t.hidden', '=', 0),
    )
    .innerJoin('attempts as a', (join) => join.onRef('a.rollout', '=', 'r.key').onRef('a.number', '=', 'r.attempt'))
    .select(['r.key', 't.branch_point', 't.next_step_number', 't.timed_turns', 't.turn_seconds'])
    .select(['a.claim_time', 't.branch_reward_sum as reward', lastAppend(tx.engine).as('last_append')])
    .where(tx.engine.sql.among(sql.ref('r.key'), rollouts))
    .execute();
  return new Map(
    rows.map((row) => {
      const lastAppendTime = row.last_append ?? undefined;
      const turns = turnsOf(row.branch_point, row.next_step_number);
      const timing = timeTurns(turns, row, secondsBetween(row.claim_time, lastAppendTime ?? row.claim_time));
      return [row.key, { turns, reward: readOptionalReal(row.reward), lastAppendTime, timing }];
    }),
  );
}

/**
 * M2: returns how long the turns of an attempt took. Uses the times of the steps if the client gave both. If no step
 * has them, uses `seconds`, the database's time from the claim to the last turn.
 */
function timeTurns(
  turns: bigint,
  given: { readonly timed_turns: bigint; readonly turn_seconds: number | string },
  seconds: number,
): TimedTurns {
  if (turns <= 0n) return NO_TURNS;
  if (given.timed_turns === 0n) return { timedTurns: turns, turnSeconds: seconds };
  return { timedTurns: given.timed_turns, turnSeconds: readReal(given.turn_seconds) };
}

/** The result is at least 0, because a clock may have been set back. */
function secondsBetween(from: string, to: string): number {
  return Math.max(0, Number(parseInstant(to) - parseInstant(from)) / 1e9);
}

const NO_TURNS: TimedTurns = Object.freeze({ timedTurns: 0n, turnSeconds: 0 });

/** M2: how long the turns of an attempt took. */
export function timingAt(end: AttemptEnd | undefined): TimedTurns {
  return end?.timing ?? NO_TURNS;
}

interface AttemptSeal {
  readonly caller: Caller;
  readonly rollout: Pick<LockedRollout, 'key' | 'attempt'>;
  /** Undefined if the trajectory was deleted. */
  readonly head: LockedHead | undefined;
  readonly status: SealStatus;
  readonly message: string;
}

const END = rowUpdate(ATTEMPTS, ['rollout', 'number'], ['status', 'message', 'end_time', 'reward', 'turns']);

/** Ends attempts without a result, stores their rewards and turns, and seals their trajectories. */
export async function endAttempts(
  tx: Transaction,
  seals: readonly (AttemptSeal & { readonly end: AttemptEnd | undefined })[],
): Promise<void> {
  const rows = seals.map(({ rollout, status, message, end }) => {
    const ending = { status, message, end_time: tx.now, reward: rewardAt(end), turns: turnsAt(end) };
    return { rollout: rollout.key, number: rollout.attempt, ...ending };
  });
  await tx.engine.bulk.update(tx.db, END, rows);
  await sealAttempts(tx, seals);
}

/** Returns the value for the `reward` column; null without a reward. */
export function rewardAt(end: AttemptEnd | undefined): number | string | null {
  return bindOptionalReal(end?.reward);
}

export function turnsAt(end: AttemptEnd | undefined): bigint {
  return end?.turns ?? 0n;
}

/** Seals the open trajectories of attempts (L3). The number of statements does not grow with the attempts. */
export async function sealAttempts(tx: Transaction, seals: readonly AttemptSeal[]): Promise<void> {
  await sealHeads(
    tx,
    seals.flatMap((seal) => (seal.head === undefined ? [] : [{ ...seal, head: seal.head }])),
  );
}

type AttemptOnly = Omit<Attempt, 'validations' | 'override' | 'environmentIds'>;

/** Selects all attempts of a rollout, by number, without what other tables hold of them. */
export function selectAttempts(db: Db, rollout: Expression<bigint>) {
  return db
    .selectFrom('attempts as a')
    .leftJoin('trajectories as t', (join) =>
      join.onRef('t.tree', '=', 'a.tree').onRef('t.key', '=', 'a.trajectory').on('t.hidden', '=', 0),
    )
    .select(['a.number', 'a.status', 'a.message', 'a.worker_id', 'a.claim_time', 'a.end_time', 't.id'])
    .select(['a.result', 'a.summary_json', 'a.success', 'a.metrics', 'a.timings', 'a.start_time'])
    .select(
      sql<number | string | null>`case when a.end_time is null then t.branch_reward_sum else a.reward end`.as('reward'),
    )
    .where('a.rollout', '=', rollout)
    .orderBy('a.number');
}

type ListedAttempt = Awaited<ReturnType<ReturnType<typeof selectAttempts>['execute']>>[number];

export function readAttempt(row: ListedAttempt): AttemptOnly {
  return {
    number: Number(row.number),
    trajectoryId: row.id ?? '',
    status: row.status as Status,
    message: row.message,
    workerId: row.worker_id,
    claimTime: parseInstant(row.claim_time),
    startTime: readOptionalTime(row.start_time),
    endTime: readOptionalTime(row.end_time),
    result: readResult(row.result, row.summary_json),
    success: readFlag(row.success),
    reward: readOptionalReal(row.reward),
    metrics: readMetrics(row.metrics),
    timings: readTimings(row.timings),
  };
}

export type AttemptRow = Selectable<AttemptsTable>;

/** Columns that a rollout's row copies from its latest attempt. Both tables use the same names. */
export const ATTEMPT_COLUMNS = [
  'result',
  'summary_json',
  'result_success',
  'validation_passed',
  'override',
  'success',
  'reward',
  'turns',
  'metrics',
  'timings',
  'start_time',
] as const satisfies readonly (keyof AttemptsTable & keyof RolloutsTable)[];

type AttemptColumn = (typeof ATTEMPT_COLUMNS)[number];
type AttemptFlag = 'result_success' | 'validation_passed' | 'override' | 'success';

/** Bound values of the columns that a rollout copies. */
export type AttemptValues = Pick<Selectable<RolloutsTable>, Exclude<AttemptColumn, AttemptFlag>> &
  Readonly<Record<AttemptFlag, 0 | 1 | null>>;

/** Values of the copied columns while a rollout is PENDING: the next attempt starts without them. */
export const NO_ATTEMPT_VALUES: AttemptValues = Object.freeze({
  result: '',
  summary_json: '',
  result_success: null,
  validation_passed: null,
  override: null,
  success: null,
  reward: null,
  turns: 0n,
  metrics: '{}',
  timings: '{}',
  start_time: null,
});

/**
 * Returns what a live or terminal rollout copies from its latest attempt. While the rollout is live, `attempt` may also
 * be the rollout's own row.
 */
export function attemptValuesOf(attempt: Pick<Selectable<RolloutsTable>, AttemptColumn>): AttemptValues {
  return {
    result: attempt.result,
    summary_json: attempt.summary_json,
    result_success: flagOf(attempt.result_success),
    validation_passed: flagOf(attempt.validation_passed),
    override: flagOf(attempt.override),
    success: flagOf(attempt.success),
    reward: attempt.reward,
    turns: attempt.turns,
    metrics: attempt.metrics,
    timings: attempt.timings,
    start_time: attempt.start_time,
  };
}

/** Engines return flags in other types than they accept. */
function flagOf(flag: boolean | bigint | 0 | 1 | null): 0 | 1 | null {
  return bindFlag(readFlag(flag));
}

/**
 * Returns what locked PENDING rollouts copy once they are terminal: values of their latest attempt, or none without an
 * attempt.
 */
export async function readAttemptValues(
  tx: Transaction,
  rollouts: readonly Pick<LockedRollout, 'key' | 'attempt'>[],
): Promise<(rollout: bigint) => AttemptValues> {
  const tried = rollouts.filter(({ attempt }) => attempt > 0n).map(({ key }) => key);
  if (tried.length === 0) return () => NO_ATTEMPT_VALUES;
  const rows = await tx.db
    .selectFrom('attempts as a')
    .innerJoin('rollouts as r', (join) => join.onRef('r.key', '=', 'a.rollout').onRef('r.attempt', '=', 'a.number'))
    .selectAll('a')
    .where(tx.engine.sql.among(sql.ref('a.rollout'), tried))
    .execute();
  const found = new Map(rows.map((row) => [row.rollout, attemptValuesOf(row)]));
  return (rollout) => found.get(rollout) ?? NO_ATTEMPT_VALUES;
}

/** Reads an attempt of a locked rollout. The lock of the rollout covers its attempts. */
export async function readAttemptRow(tx: Transaction, rollout: bigint, number: bigint | number): Promise<AttemptRow> {
  return tx.db
    .selectFrom('attempts')
    .selectAll()
    .where('rollout', '=', rollout)
    .where('number', '=', BigInt(number))
    .executeTakeFirstOrThrow();
}

/**
 * Changes an attempt of a locked rollout and derives its verdict (M3). Returns what the rollout's row copies, or
 * undefined if the rollout does not show this attempt.
 */
export async function changeAttempt(
  tx: Transaction,
  rollout: LockedRollout,
  attempt: AttemptRow,
  changes: Updateable<AttemptsTable>,
): Promise<AttemptValues | undefined> {
  const after = { ...attempt, ...changes } as AttemptRow;
  const success = verdict({
    override: readFlag(after.override),
    validationPassed: readFlag(after.validation_passed),
    result: readFlag(after.result_success),
  });
  await tx.db
    .updateTable('attempts')
    .set({ ...changes, success: bindFlag(success) })
    .where('rollout', '=', attempt.rollout)
    .where('number', '=', attempt.number)
    .execute();
  const status = rollout.status as Status;
  if (attempt.number !== rollout.attempt || status === 'PENDING') return undefined;
  return { ...attemptValuesOf(after), success: bindFlag(rolloutSuccess(status, success)) };
}
