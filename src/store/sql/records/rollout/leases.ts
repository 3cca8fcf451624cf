import { sql } from 'kysely';
import type { Caller } from '../../../../domain/caller.ts';
import type { Hint } from '../../../../domain/change.ts';
import { type Instant, parseInstant } from '../../../../domain/instant.ts';
import { type Lease, leaseAt, NANOS_PER_MS, type Pause, renewLease } from '../../../../domain/lease.ts';
import type { Status } from '../../../../domain/lifecycle.ts';
import { isClaimer } from '../../../../domain/rollout_moves.ts';
import type { LeaseState, LeaseToken } from '../../../contract/rollout.ts';
import type { Engine, LockedHead } from '../../kit/engine.ts';
import { serverIn } from '../../kit/status/status_changes.ts';
import { ROLLOUTS } from '../../kit/tables/rollouts.ts';
import { rowUpdate } from '../../kit/tables/table.ts';
import { inOneRoundTrip, type NamespaceTransaction, type Transaction, write, writeIn } from '../../kit/transaction.ts';
import { readOptionalTime } from '../../kit/values.ts';
import { lockAttempts, readAttemptEnds } from '../attempt/attempts.ts';
import { readPauses } from '../run/rows.ts';
import { rolloutHints } from './hints.ts';
import { type EndingAttempt, requeue } from './requeueing.ts';
import { bindLease, holdingOf, IS_LIVE, LEASE_COLUMNS, type LockedRollout, PENDING_LAST, readLease } from './rows.ts';

export async function heartbeatRollouts(
  engine: Engine,
  caller: Caller,
  leases: readonly LeaseToken[],
  leaseMs: number | undefined,
): Promise<LeaseState[]> {
  return writeIn(engine, caller.namespace, async (tx) => {
    const rows = await lockVisible(tx, [...new Set(leases.map(({ id }) => id))]);
    const kept = new Set(leases.filter((lease) => holds(rows.get(lease.id), lease, caller)).map(({ id }) => id));
    const now = parseInstant(await tx.readNow());
    const renewed = [...rows.values()].flatMap((row) => {
      const lease = kept.has(row.id) ? readLease(row) : undefined;
      if (lease === undefined) return [];
      const ms = leaseMs === undefined ? lease.ms : BigInt(leaseMs);
      return [{ row, lease: renewLease(lease, now, ms, row.pauses) }];
    });
    await writeLeases(tx, renewed);
    const remaining = new Map(renewed.map(({ row, lease }) => [row.id, remainingOf(lease, now)]));
    return leases.map((lease) => stateOf(lease, caller, rows.get(lease.id), remaining.get(lease.id)));
  });
}

type HeldRow = Awaited<ReturnType<typeof lockVisible>> extends Map<string, infer Row> ? Row : never;

/**
 * Locks rollouts by id, in the order of every transaction that locks several. Their runs are read afterwards without a
 * lock (Q4), so that the read sees deletions that have committed. Rollouts of deleted runs are omitted.
 */
async function lockVisible(tx: NamespaceTransaction, ids: readonly string[]) {
  const query = tx.db
    .selectFrom('rollouts as r')
    .select(['r.key', 'r.id', 'r.run', 'r.status', 'r.attempt', 'r.claimer'])
    .select(LEASE_COLUMNS.map((column) => `r.${column}` as const))
    .where('r.namespace', '=', tx.namespace)
    .where('r.id', 'in', ids)
    .orderBy(PENDING_LAST)
    .orderBy('r.key');
  const rows = await tx.engine.locks.rows(query, 'write').execute();
  const runs = await visibleRuns(
    tx,
    rows.map(({ run }) => run),
  );
  const visible = rows.flatMap((row) => {
    const run = runs.get(row.run);
    return run === undefined ? [] : [{ ...row, runStatus: run.status, pauses: run.pauses }];
  });
  return new Map(visible.map((row) => [row.id, row]));
}

interface VisibleRun {
  readonly status: Status;
  readonly pauses: readonly Pause[];
}

/** Returns the runs that are not deleted, by key. */
async function visibleRuns(tx: Transaction, runs: readonly bigint[]): Promise<Map<bigint, VisibleRun>> {
  if (runs.length === 0) return new Map();
  const rows = await tx.db
    .selectFrom('runs as u')
    .select(['u.key', 'u.status', 'u.pauses'])
    .where(tx.engine.sql.among(sql.ref('u.key'), [...new Set(runs)]))
    .where('u.hidden', '=', 0)
    .execute();
  return new Map(
    rows.map(({ key, status, pauses }) => [key, { status: status as Status, pauses: readPauses(pauses) }]),
  );
}

function holds(row: HeldRow | undefined, { attempt }: LeaseToken, caller: Caller): boolean {
  if (row === undefined || !isClaimer(row, caller)) return false;
  const live = row.status === 'INITIALIZING' || row.status === 'RUNNING';
  return live && holdingOf(row).attempt === attempt;
}

function stateOf(
  lease: LeaseToken,
  caller: Caller,
  row: HeldRow | undefined,
  remainingMs: number | undefined,
): LeaseState {
  const { id, attempt } = lease;
  if (row === undefined) {
    return { id, attempt, kept: false, status: undefined, runStatus: undefined, remainingMs: undefined };
  }
  const kept = holds(row, lease, caller);
  const { runStatus } = row;
  const status = row.status as Status;
  return { id, attempt, kept, status, runStatus, remainingMs: kept ? remainingMs : undefined };
}

/** Returns at least 0, because an attempt may exceed its timeout before the sweep ends it. */
function remainingOf({ end }: Lease, now: Instant): number {
  return Math.max(0, Number((end - now) / NANOS_PER_MS));
}

interface LeaseWrite {
  readonly row: Pick<LockedRollout, 'key'>;
  readonly lease: Lease;
}

const LEASE_UPDATE = rowUpdate(ROLLOUTS, ['key'], LEASE_COLUMNS);

/** Watchers of a run do not see leases (M5), so writes of leases set neither mark nor revision. */
async function writeLeases(tx: Transaction, writes: readonly LeaseWrite[]): Promise<void> {
  if (writes.length === 0) return;
  const rows = writes.map(({ row, lease }) => ({ key: row.key, ...bindLease(lease) }));
  await tx.engine.bulk.update(tx.db, LEASE_UPDATE, rows);
}

export async function sweepLeases(engine: Engine, limit: number): Promise<number> {
  let total = 0;
  for (let more = true; more && total < limit; ) {
    const size = Math.min(BATCH, limit - total);
    const { requeued, kept, changed } = await write(engine, (tx) => sweepBatch(tx, size));
    engine.changes.announce(changed);
    total += requeued;
    // Renewed leases no longer match. Only rows that other transactions hold can be selected again.
    more = requeued + kept >= size;
  }
  return total;
}

/** Rollouts per transaction, to bound how long their locks are held. */
const BATCH = 200;

interface Swept {
  readonly requeued: number;
  readonly kept: number;
  readonly changed: readonly Hint[];
}

async function sweepBatch(tx: Transaction, limit: number): Promise<Swept> {
  await tx.readNow();
  const ended = await lockDue(tx, limit);
  const runs = await visibleRuns(
    tx,
    ended.map(({ run }) => run),
  );
  // A run may have been paused or deleted since the rows were selected. Rollouts of a deleted run are left to the
  // purge.
  const rows = ended.filter(({ run }) => runs.has(run) && runs.get(run)?.status !== 'PAUSED');
  if (rows.length === 0) return { requeued: 0, kept: 0, changed: [] };
  const heads = await lockAttempts(tx, rows, 'never');
  const [now, ends] = await inOneRoundTrip([
    tx.readNow(),
    readAttemptEnds(
      tx,
      rows.map(({ key }) => key),
    ),
  ]);
  const alive: LeaseWrite[] = [];
  const silent: EndingAttempt[] = [];
  for (const row of rows) {
    const [head, end] = [heads.get(row.key), ends.get(row.key)];
    // Another transaction holds the trajectory, most likely for an append. The next sweep retries.
    if (head === undefined && end !== undefined) continue;
    const lastAppend = readOptionalTime(end?.lastAppendTime ?? null);
    const lease = leaseOf(row, lastAppend, runs.get(row.run)?.pauses ?? [], parseInstant(now));
    if (lease.end >= parseInstant(now)) alive.push({ row, lease });
    else silent.push(silenced(row, head, lease, parseInstant(now)));
  }
  await writeLeases(tx, alive);
  await requeue(tx, silent);
  return { requeued: silent.length, kept: alive.length, changed: rolloutHints(silent.map(({ row }) => row)) };
}

/** Locks live rollouts whose lease has ended, or ends later than a lease that begins now: a clock was ahead. */
async function lockDue(tx: Transaction, limit: number): Promise<LockedRollout[]> {
  const live = () =>
    tx.db
      .selectFrom('rollouts as r')
      .selectAll('r')
      .where(IS_LIVE)
      .where(
        sql<boolean>`(select not u.hidden and u.status <> 'PAUSED' from ${tx.engine.sql.table('runs')} as u where u.key = r.run)`,
      )
      .limit(limit);
  const ended = live().where('r.lease_end_time', '<', tx.now).orderBy('r.lease_end_time');
  const rows = await tx.engine.locks.freeRows(ended, 'write').execute();
  const [latest] = await tx.db
    .selectFrom('rollouts as r')
    .select(['r.lease_end_time', 'r.lease_ms'])
    .where(IS_LIVE)
    .orderBy('r.lease_end_time', 'desc')
    .limit(1)
    .execute();
  if (latest === undefined || !isAhead(latest, tx.now)) return rows;
  const last = await tx.engine.locks.freeRows(live().orderBy('r.lease_end_time', 'desc'), 'write').execute();
  return [...rows, ...last.filter((row) => isAhead(row, tx.now))];
}

function isAhead(row: Pick<LockedRollout, 'lease_end_time' | 'lease_ms'>, now: string): boolean {
  return (
    row.lease_end_time !== null && parseInstant(row.lease_end_time) > parseInstant(now) + row.lease_ms * NANOS_PER_MS
  );
}

/** Q3: returns the lease of a rollout that was selected by its stored lease end. */
function leaseOf(row: LockedRollout, lastAppend: Instant | undefined, pauses: readonly Pause[], now: Instant): Lease {
  const lease = readLease(row);
  if (lease === undefined) throw new Error('a rollout without a lease was swept');
  return leaseAt(lease, lastAppend, pauses, now);
}

function silenced(row: LockedRollout, head: LockedHead | undefined, lease: Lease, now: Instant): EndingAttempt {
  return { caller: serverIn(row.namespace), row, head, message: whyEnded(row, lease, now), metadataJson: '' };
}

function whyEnded({ attempt, worker_id, attempt_timeout_ms }: LockedRollout, lease: Lease, now: Instant): string {
  if (lease.attemptEnd !== undefined && lease.attemptEnd <= now) {
    return `attempt ${attempt} took longer than its attempt_timeout of ${Number(attempt_timeout_ms) / 1000} s`;
  }
  const silence = (now - lease.end) / NANOS_PER_MS + lease.ms;
  return `attempt ${attempt} lost its lease: no heartbeat or append of worker "${worker_id}" for ${silence / 1000n} s`;
}
