import { type Selectable, type SelectQueryBuilder, sql } from 'kysely';
import { rolloutNotFound } from '../../../../domain/errors.ts';
import { formatInstant, type Instant, parseInstant } from '../../../../domain/instant.ts';
import { isPaused, type Lease, leaseAt, NANOS_PER_MS } from '../../../../domain/lease.ts';
import { isTerminal, type Status } from '../../../../domain/lifecycle.ts';
import type { Rollout, RolloutResult, ValidationOverride } from '../../../../domain/rollout.ts';
import type { RolloutHolding } from '../../../../domain/rollout_moves.ts';
import type { View } from '../../../contract/request.ts';
import type { Db, Engine } from '../../kit/engine.ts';
import { ROLLOUTS } from '../../kit/tables/rollouts.ts';
import { columnsIn } from '../../kit/tables/selection.ts';
import type { RolloutsTable, Tables } from '../../kit/tables.ts';
import { inOneRoundTrip, type NamespaceTransaction, type ReadScope } from '../../kit/transaction.ts';
import { isSet, numberJson, readLabels, readMetrics, readOptionalReal, readOptionalTime } from '../../kit/values.ts';
import { readPauses } from '../run/rows.ts';
import { readTimings } from '../stage/rows.ts';

export type RolloutRow = Awaited<ReturnType<ReturnType<typeof selectRollouts>['execute']>>[number];

/** Selects rollouts (`r`) of visible runs, with columns of their group, stage, run, task, trajectory and override. */
export function selectRollouts(engine: Engine, db: Db, view: View) {
  return withOthers(engine, db.selectFrom('rollouts as r'), view);
}

/** Selects a page of rollouts (`r`). The limited page is a subquery, so that planners join only its rows. */
export function selectPage(engine: Engine, db: Db, view: View, page: PageOfRollouts) {
  // The subquery has the columns and the name of the table.
  return withOthers(engine, db.selectFrom(page.as('r')) as unknown as Rollouts, view);
}

/** Columns that `readRollout` does not need. */
const UNREAD = [
  'namespace',
  'task',
  'tree',
  'trajectory',
  'result_success',
  'override',
  'first_given',
  'status_changes',
  'mark',
] as const;

type Rollouts = SelectQueryBuilder<Tables & { r: RolloutsTable }, 'r', unknown>;
type PageOfRollouts = SelectQueryBuilder<Tables & { r: RolloutsTable }, 'r', Selectable<RolloutsTable>>;

function withOthers(engine: Engine, rollouts: Rollouts, view: View) {
  // SQLite keeps the order of cross joins, whatever its statistics: rollouts first, then the rows they refer to.
  return rollouts
    .crossJoin('runs as u')
    .crossJoin('stages as s')
    .crossJoin('groups as g')
    .whereRef('u.key', '=', 'r.run')
    .where('u.hidden', '=', 0)
    .whereRef('s.key', '=', 'r.stage')
    .whereRef('g.key', '=', 'r.group_key')
    .leftJoin('tasks as k', 'k.key', 'r.task')
    .leftJoin('trajectories as t', (join) =>
      join.onRef('t.tree', '=', 'r.tree').onRef('t.key', '=', 'r.trajectory').on('t.hidden', '=', 0),
    )
    .leftJoin('validation_overrides as o', (join) =>
      join
        .onRef('o.rollout', '=', 'r.key')
        .on('r.override', 'is not', null)
        .on('o.ordinal', '=', (eb) =>
          eb
            .selectFrom('validation_overrides as n')
            .select((max) => max.fn.max('n.ordinal').as('ordinal'))
            .whereRef('n.rollout', '=', 'r.key')
            .whereRef('n.attempt', '=', 'r.attempt'),
        ),
    )
    .select(columnsIn(ROLLOUTS, 'r', view, UNREAD))
    .select([
      'u.id as run_id',
      's.id as stage_id',
      'g.id as group_id',
      'k.id as task_id',
      't.id as trajectory_id',
      't.branch_point',
      't.next_step_number',
      'o.ordinal as override_ordinal',
      'o.attempt as override_attempt',
      'o.success as override_success',
      'o.reason as override_reason',
      'o.actor as override_actor',
      'o.override_time',
    ])
    .select([
      sql<string>`case when ${IS_LIVE} then u.pauses else '' end`.as('pauses'),
      sql<number | string | null>`case when ${IS_LIVE} then t.branch_reward_sum end`.as('own_reward'),
      sql<string | null>`case when ${IS_LIVE} then ${lastAppend(engine)} end`.as('last_append'),
    ]);
}

/** Whether a rollout (`r`) is live. Matches the conditions of the indexes of live rollouts literally. */
export const IS_LIVE = sql<boolean>`r.status in ('INITIALIZING', 'RUNNING')`;

/**
 * Reward of a rollout (`r`) as returned to clients; `t` is the trajectory of its attempt. The reward of a live rollout
 * is the current sum of its trajectory's own steps. A PENDING rollout has none.
 */
export const SHOWN_REWARD = sql<
  number | string | null
>`case when ${IS_LIVE} then t.branch_reward_sum else r.reward end`;

/**
 * Latest commit time in the last segment of the trajectory (`t`); null without one. Creating a trajectory is not
 * an append (Q3).
 */
export function lastAppend(engine: Engine) {
  return sql<
    string | null
  >`(select coalesce(w.last_commit_time, w.commit_time) from ${engine.sql.table('segments')} as w
    where w.tree = t.tree and w.trajectory = t.key order by w.first_step_number desc limit 1)`;
}

/** Returns the number of own steps that are not the root. */
export function turnsOf(branchPoint: bigint | null, nextStepNumber: bigint): bigint {
  const turns = nextStepNumber - (branchPoint ?? 0n) - 1n;
  return turns > 0n ? turns : 0n;
}

type RolloutReference = { readonly id: string } | { readonly key: bigint };

/** Returns a rollout, by default in FULL view; undefined if it does not exist. */
export async function findRollout(
  { engine, db, namespace }: ReadScope,
  reference: RolloutReference,
  view: View = 'FULL',
): Promise<Rollout | undefined> {
  const row = await selectRollout(engine, db, namespace, reference, view).executeTakeFirst();
  return row === undefined ? undefined : readRollout(row);
}

export function selectRollout(engine: Engine, db: Db, namespace: string, reference: RolloutReference, view: View) {
  const query = selectRollouts(engine, db, view).where('r.namespace', '=', namespace);
  return 'key' in reference ? query.where('r.key', '=', reference.key) : query.where('r.id', '=', reference.id);
}

/**
 * Returns a rollout that this transaction has written and locked. The lookup can fail only for a terminal rollout,
 * because deleting a run locks all others. Errors: ROLLOUT_NOT_FOUND.
 */
export async function readWritten(
  tx: NamespaceTransaction,
  { id, key }: { readonly id: string; readonly key: bigint },
): Promise<Rollout> {
  const rollout = await findRollout(tx, { key });
  if (rollout === undefined) throw rolloutNotFound(id);
  return rollout;
}

export function readRollout(row: RolloutRow): Rollout {
  const status = row.status as Status;
  const ended = isTerminal(status);
  const reward = row.own_reward ?? row.reward;
  return {
    key: row.key,
    id: row.id,
    run: { key: row.run, id: row.run_id },
    stage: { key: row.stage, id: row.stage_id },
    group: { key: row.group_key, id: row.group_id, number: row.group_number },
    number: row.number,
    taskId: row.task_id ?? '',
    labels: readLabels(row.labels),
    inputJson: row.input_json,
    priority: Number(row.priority),
    maxTurns: row.max_turns ?? undefined,
    maxAttempts: Number(row.max_attempts),
    refundedAttempts: Number(row.refunded_attempts),
    attemptTimeoutMs: row.attempt_timeout_ms === null ? undefined : Number(row.attempt_timeout_ms),
    retryDelayMs: Number(row.retry_delay_ms),
    startFrom: readStart(row),
    modelUri: row.model_uri,
    status,
    statusMessage: row.status_message,
    phase: row.phase,
    attempt: Number(row.attempt),
    trajectoryId: row.trajectory_id ?? '',
    turns: ended || row.next_step_number === null ? row.turns : turnsOf(row.branch_point, row.next_step_number),
    workerId: row.worker_id,
    leaseEndTime: leaseEnd(row),
    claimableTime: status === 'PENDING' ? readOptionalTime(row.claimable_time) : undefined,
    result: readResult(row.result, row.summary_json),
    validationPassed: readFlag(row.validation_passed),
    override: readOverride(row),
    success: readFlag(row.success),
    reward: readOptionalReal(reward),
    metrics: readMetrics(row.metrics),
    timings: readTimings(row.timings),
    metadataJson: row.metadata_json,
    startTime: readOptionalTime(row.start_time),
    endTime: readOptionalTime(row.end_time),
    createTime: parseInstant(row.create_time),
    updateTime: parseInstant(row.update_time),
    revision: row.revision,
  };
}

export function readFlag(flag: boolean | bigint | number | null): boolean | undefined {
  return flag === null ? undefined : isSet(flag);
}

export function readStart(row: { readonly start_trajectory: string | null; readonly start_step: bigint | null }) {
  if (row.start_trajectory === null || row.start_step === null) return undefined;
  return { trajectoryId: row.start_trajectory, stepNumber: row.start_step };
}

/** In nanoseconds: 24 h. */
const LONGEST_LEASE = 86_400_000n * NANOS_PER_MS;

/** Q3: the lease runs from the latest of claim, heartbeat and append. It has no end while the run is paused. */
function leaseEnd(row: RolloutRow): Instant | undefined {
  const lease = readLease(row);
  if (lease === undefined) return undefined;
  const pauses = readPauses(row.pauses);
  if (isPaused(pauses)) return undefined;
  const { end } = leaseAt(lease, undefined, pauses);
  const lastAppend = readOptionalTime(row.last_append);
  // Sweeps renew the stored end. An append that is later by the longest lease has the time of a clock that was ahead.
  if (lastAppend === undefined || lastAppend > end + LONGEST_LEASE) return end;
  return leaseAt(lease, lastAppend, pauses).end;
}

function readOverride(row: RolloutRow): ValidationOverride | undefined {
  const { override_ordinal: ordinal, override_attempt: attempt, override_reason: reason } = row;
  const { override_actor: actor, override_time: time } = row;
  if (ordinal === null || attempt === null || reason === null || actor === null || time === null) return undefined;
  const success = readFlag(row.override_success);
  return { ordinal, attempt: Number(attempt), success, reason, actor, overrideTime: parseInstant(time) };
}

export type LockedRollout = Selectable<RolloutsTable>;

/**
 * Locks a rollout's row for writing. A deletion of its run may have held the lock, so a separate statement checks the
 * run and sees what that deletion committed. The run is not locked (Q4). Errors: ROLLOUT_NOT_FOUND.
 */
export async function lockRollout(tx: NamespaceTransaction, id: string): Promise<LockedRollout> {
  const named = tx.db.selectFrom('rollouts as r').where('r.namespace', '=', tx.namespace).where('r.id', '=', id);
  const visible = named.innerJoin('runs as u', 'u.key', 'r.run').select('u.key').where('u.hidden', '=', 0);
  const [row, run] = await inOneRoundTrip([
    tx.engine.locks.rows(named.selectAll('r'), 'write').executeTakeFirst(),
    visible.executeTakeFirst(),
  ]);
  if (row === undefined || run === undefined) throw rolloutNotFound(id);
  return row;
}

/** Returns the columns that decide which verbs are allowed. */
export function holdingOf({
  id,
  status,
  attempt,
  lease_ms,
  claimer,
}: Pick<LockedRollout, 'id' | 'status' | 'attempt' | 'lease_ms' | 'claimer'>): RolloutHolding {
  return { id, status: status as Status, attempt: Number(attempt), hasHolder: lease_ms > 0n, claimer };
}

/**
 * A transaction that locks several rollouts sorts them by this and then by key, so that PENDING ones are locked last. A
 * success locks its own row before the PENDING siblings that it cancels.
 */
export const PENDING_LAST = sql`status = 'PENDING'`;

/** Returns the row key of a rollout of a visible run. Errors: ROLLOUT_NOT_FOUND. */
export async function findRolloutKey({ engine, db, namespace }: ReadScope, id: string): Promise<bigint> {
  const query = engine.kept.byKey('key of rollout', [namespace, id], (of, own) =>
    db
      .selectFrom('rollouts as o')
      .innerJoin('runs as r', 'r.key', 'o.run')
      .select('o.key')
      .where('o.namespace', '=', of)
      .where('o.id', '=', own)
      .where('r.hidden', '=', 0),
  );
  const [row] = (await db.executeQuery(query)).rows;
  if (row === undefined) throw rolloutNotFound(id);
  return row.key;
}

/** Columns of a rollout's lease. */
export const LEASE_COLUMNS = ['lease_ms', 'lease_end_time', 'attempt_end_time', 'paused_us'] as const;

type LeaseRow = Pick<LockedRollout, (typeof LEASE_COLUMNS)[number]>;

/** Returns undefined if no worker holds the rollout. */
export function readLease(row: LeaseRow): Lease | undefined {
  if (row.lease_end_time === null) return undefined;
  return {
    end: parseInstant(row.lease_end_time),
    ms: row.lease_ms,
    attemptEnd: row.attempt_end_time === null ? undefined : parseInstant(row.attempt_end_time),
    paused: row.paused_us * 1000n,
  };
}

export function bindLease({ end, ms, attemptEnd, paused }: Lease): LeaseRow {
  return {
    lease_ms: ms,
    lease_end_time: formatInstant(end, 6),
    attempt_end_time: attemptEnd === undefined ? null : formatInstant(attemptEnd, 6),
    paused_us: paused / 1000n,
  };
}

/**
 * Encodes a result for its column: JSON text without the summary, which has its own column. NaN and infinities are
 * strings, because JSON has no numbers for them.
 */
export function bindResult(result: RolloutResult | undefined): string {
  if (result === undefined) return '';
  const { reward, taskCompleted, agentReportedSuccess, success, errors } = result;
  // JSON leaves out undefined values.
  return JSON.stringify({
    reward: reward === undefined ? undefined : numberJson(reward),
    taskCompleted,
    agentReportedSuccess,
    success,
    errors: errors.length === 0 ? undefined : errors,
  });
}

export function readResult(text: string, summaryJson: string): RolloutResult | undefined {
  if (text === '') return undefined;
  const { reward, taskCompleted, agentReportedSuccess, success, errors } = JSON.parse(text) as StoredResult;
  return {
    reward: reward === undefined ? undefined : Number(reward),
    taskCompleted,
    agentReportedSuccess,
    success,
    errors: errors ?? [],
    summaryJson,
  };
}

type StoredResult = Partial<Omit<RolloutResult, 'reward' | 'summaryJson'>> & { readonly reward?: number | string };
