import { type RawBuilder, type Selectable, sql } from 'kysely';
import type { Engine, Tx } from '../../kit/engine.ts';
import type { Expressions } from '../../kit/expressions.ts';
import type { RolloutsTable } from '../../kit/tables.ts';
import type { Transaction } from '../../kit/transaction.ts';

export interface ClaimsEngine extends Engine {
  readonly claims: Claims;
}

/** What claims need of an engine. */
export interface Claims {
  /**
   * Returns the time and the change mark of a claim transaction. Disables sequential scans, sorts and replanning for
   * the rest of the transaction. Must be the first statement.
   */
  begin(tx: Tx): Promise<{ readonly now: string; readonly mark: bigint }>;

  /**
   * Takes at most `limit` PENDING rollouts from these queues, ordered by priority and creation, each locked for
   * writing. Skips rollouts that other transactions hold (Q4, Q5). The cost does not grow with the length of the queue.
   */
  lockQueued(tx: Tx, queues: readonly Queue[], wanted: Wanted, limit: number): Promise<QueuedRow[]>;

  /**
   * Takes the next PENDING rollouts of one stage, found by name, without further filters. Returns none if the stage is
   * not claimable (Q4).
   */
  lockNext(tx: Tx, stage: StageName, limit: number): Promise<QueuedRow[]>;
}

/** PENDING rollouts of a stage: all of them, or those of one task. */
export interface Queue {
  readonly stage: bigint;
  readonly task: bigint | null;
}

/** A stage as callers name it. */
export interface StageName {
  readonly namespace: string;
  readonly id: string;
}

/** Filter on queued rollouts. */
export interface Wanted {
  readonly labels: ReadonlyMap<string, string>;
  readonly minPriority: number;
  /** Keys of rollouts to exclude. */
  readonly except: readonly bigint[];
}

/**
 * A rollout from a queue, with immutable columns of other tables that a claim returns, and a key for the trajectory of
 * its attempt.
 */
export interface QueuedRow extends Selectable<RolloutsTable> {
  readonly group_id: string;
  readonly task_id: string | null;
  readonly next_trajectory: bigint;
}

/**
 * A literal that matches the partial indexes of PENDING rollouts. With a parameter, a generic plan could not use them.
 */
export const IS_PENDING = sql`r.status = 'PENDING'`;

/**
 * Condition for PENDING rollouts that are not delayed (Q3). The time is read once per statement, so that the last
 * column of the queue's indexes can filter delayed rollouts.
 */
export function isClaimable({ now }: Expressions): RawBuilder<unknown> {
  return sql`${IS_PENDING} and r.claimable_time <= (select ${now})`;
}

const ANYTHING: Wanted = { labels: new Map(), minPriority: 0, except: [] };

/** Conditions of a filter on rollouts (`r`) with a status. */
export function isWanted(
  expressions: Expressions,
  { labels, minPriority, except }: Wanted,
  status: RawBuilder<unknown>,
): RawBuilder<unknown> {
  const conditions = [status];
  if (minPriority > 0) conditions.push(sql`r.priority >= ${minPriority}`);
  for (const [key, value] of labels)
    conditions.push(sql`${expressions.hasPair(sql.ref<string>('r.labels'), key, value)}`);
  if (except.length > 0) conditions.push(sql`not ${expressions.among(sql.ref('r.key'), except)}`);
  return sql.join(conditions, sql` and `);
}

/** Q4: condition for a claimable stage (`s`) of a run (`u`). */
export const IS_OPEN = sql<boolean>`(s.status in ('PENDING', 'INITIALIZING', 'RUNNING')
  and u.status in ('PENDING', 'INITIALIZING', 'RUNNING') and not u.hidden)`;

/** Subquery for the row key of a stage; null if it is not claimable. */
export function openStage(expressions: Expressions, { namespace, id }: StageName): RawBuilder<unknown> {
  return sql`(select s.key from ${expressions.table('stages')} as s join ${expressions.table('runs')} as u on u.key = s.run
    where s.namespace = ${namespace} and s.id = ${id} and ${IS_OPEN})`;
}

/** Q5: order of the queue. */
export const QUEUE_ORDER = sql`r.priority desc, r.key`;

/**
 * Columns of `QueuedRow`, except the trajectory key. Subqueries per row prevent planners from scanning groups or tasks.
 */
export function queuedColumns(expressions: Expressions): RawBuilder<unknown> {
  return sql`r.*, ${groupIdOf(expressions)} as group_id, ${taskIdOf(expressions)} as task_id`;
}

function groupIdOf(expressions: Expressions): RawBuilder<string> {
  return sql<string>`(select g.id from ${expressions.table('groups')} as g where g.key = r.group_key)`;
}

function taskIdOf(expressions: Expressions): RawBuilder<string | null> {
  return sql<string | null>`(select t.id from ${expressions.table('tasks')} as t where t.key = r.task)`;
}

/** A queue in SQL. */
interface QueueTerms {
  readonly columns: RawBuilder<unknown>;
  readonly stage: RawBuilder<unknown>;
  /** Made by `taskIs`. Default: all tasks. */
  readonly ofTask?: RawBuilder<unknown>;
  readonly limit: RawBuilder<unknown>;
}

/** Selects the next rollouts of one queue, in order. */
export function queueOf(
  expressions: Expressions,
  { columns, stage, ofTask = sql``, limit }: QueueTerms,
  wanted: Wanted = ANYTHING,
): RawBuilder<unknown> {
  return sql`select ${columns} from ${expressions.table('rollouts')} as r
    where r.stage = ${stage} ${ofTask} and ${isWanted(expressions, wanted, isClaimable(expressions))} order by ${QUEUE_ORDER} limit ${limit}`;
}

/** Condition for the queue of one task; empty for a queue of all tasks. */
export function taskIs({ task }: Queue, value: RawBuilder<unknown> = sql`${task}`): RawBuilder<unknown> {
  return task === null ? sql`` : sql`and r.task = ${value}`;
}

/** Q5: order of rows from several queues. */
export function inQueueOrder(a: QueueRank, b: QueueRank): number {
  return a.priority === b.priority ? Number(a.key - b.key) : Number(b.priority - a.priority);
}

type QueueRank = Pick<QueuedRow, 'priority' | 'key'>;

/**
 * Takes at most `limit` of the rollouts for which the condition (on `r`) holds, in the order of the queue, each locked
 * for writing. Skips rollouts that other transactions hold (Q4). `is true` prevents planners from using an index for
 * the condition in place of the keys.
 */
export async function lockByKey(
  { engine, db }: Transaction,
  keys: readonly bigint[],
  limit: number = keys.length,
  condition: RawBuilder<unknown> = sql`true`,
): Promise<QueuedRow[]> {
  const query = db
    .selectFrom('rollouts as r')
    .selectAll('r')
    .select([groupIdOf(engine.sql).as('group_id'), taskIdOf(engine.sql).as('task_id')])
    .where(engine.sql.among(sql.ref('r.key'), keys))
    .where(sql<boolean>`(${condition}) is true`)
    .orderBy('r.priority', 'desc')
    .orderBy('r.key')
    .limit(limit);
  const rows = await engine.locks.freeRows(query, 'write').execute();
  if (rows.length === 0) return [];
  const next = await engine.keys.nextMany(db, 'trajectories', rows.length);
  return rows.map((row, i) => ({ ...row, next_trajectory: next[i]! }));
}
