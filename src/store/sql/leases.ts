import { sql } from 'kysely';
import { parseInstant } from '../../domain/instant.ts';
import type { Status } from '../../domain/lifecycle.ts';
import type { LeaseState, LeaseToken } from '../contract/rollout.ts';
import { type AttemptEnd, lockAttempts, readAttemptEnds } from './attempts.ts';
import type { Engine, LockedHead, Tx } from './engine.ts';
import { type Leaving, requeue } from './requeueing.ts';
import { heldOf, type LockedRollout, leaseEndFrom } from './rollout_writing.ts';
import { together } from './together.ts';
import { readNow } from './trajectory_rows.ts';

/** Said as the index of leases says it. */
const IS_LIVE = sql<boolean>`r.status in ('INITIALIZING', 'RUNNING')`;

export async function heartbeatRollouts(
  engine: Engine,
  namespace: string,
  leases: readonly LeaseToken[],
  leaseMs: number | undefined,
): Promise<LeaseState[]> {
  return engine.write(async (tx) => {
    const rows = await lockVisible(engine, tx, namespace, [...new Set(leases.map(({ id }) => id))]);
    const kept = new Set(leases.filter((lease) => holds(rows.get(lease.id), lease)).map(({ id }) => id));
    const beating = [...rows.values()].filter(({ id }) => kept.has(id));
    const ends = beating.map((row) => ({ row, ms: leaseMs ?? Number(row.lease_ms) }));
    await moveLeaseEnds(
      engine,
      tx,
      ends.map(({ row, ms }) => ({ row, from: undefined, ms })),
    );
    const remaining = new Map(ends.map(({ row, ms }) => [row.id, ms]));
    return leases.map((lease) => stateOf(lease, rows.get(lease.id), remaining.get(lease.id)));
  });
}

type HeldRow = Awaited<ReturnType<typeof lockVisible>> extends Map<string, infer Row> ? Row : never;

/**
 * Locks rollouts by id, in order of key, as everything that locks many. Their runs are read afterwards, unlocked (Q4): a deletion that held the locks has
 * committed by then. Rollouts of deleted runs are left out.
 */
async function lockVisible(engine: Engine, tx: Tx, namespace: string, ids: readonly string[]) {
  const query = tx
    .selectFrom('rollouts as r')
    .select(['r.key', 'r.id', 'r.run', 'r.status', 'r.attempt', 'r.lease_ms', 'r.lease_end_time'])
    .where('r.namespace', '=', namespace)
    .where('r.id', 'in', ids)
    .orderBy('r.key');
  const rows = await engine.lock(query, 'write').execute();
  const statuses = await statusesOfRuns(
    engine,
    tx,
    rows.map(({ run }) => run),
  );
  const visible = rows.flatMap((row) => {
    const runStatus = statuses.get(row.run);
    return runStatus === undefined ? [] : [{ ...row, runStatus }];
  });
  return new Map(visible.map((row) => [row.id, row]));
}

/** Of runs that are not deleted, by key. */
async function statusesOfRuns(engine: Engine, tx: Tx, runs: readonly bigint[]): Promise<Map<bigint, Status>> {
  if (runs.length === 0) return new Map();
  const rows = await tx
    .selectFrom('runs as u')
    .select(['u.key', 'u.status'])
    .where(engine.among(sql.ref('u.key'), [...new Set(runs)]))
    .where('u.hidden', '=', 0)
    .execute();
  return new Map(rows.map(({ key, status }) => [key, status as Status]));
}

function holds(row: HeldRow | undefined, { attempt }: LeaseToken): boolean {
  if (row === undefined) return false;
  const live = row.status === 'INITIALIZING' || row.status === 'RUNNING';
  return live && heldOf(row).attempt === attempt;
}

function stateOf(lease: LeaseToken, row: HeldRow | undefined, remainingMs: number | undefined): LeaseState {
  const { id, attempt } = lease;
  if (row === undefined) {
    return { id, attempt, kept: false, status: undefined, runStatus: undefined, remainingMs: undefined };
  }
  const kept = holds(row, lease);
  const { runStatus } = row;
  const status = row.status as Status;
  return { id, attempt, kept, status, runStatus, remainingMs: kept ? remainingMs : undefined };
}

interface LeaseMove {
  readonly row: Pick<LockedRollout, 'key'>;
  /** The sign of life that the lease counts from; undefined: now. */
  readonly from: string | undefined;
  /** How long the lease lasts from any sign of life on (Q3). */
  readonly ms: number | bigint;
}

/** A sign of life is no change of the row for those who watch its run (M5): it bears no mark and no new revision. */
async function moveLeaseEnds(engine: Engine, tx: Tx, moves: readonly LeaseMove[]): Promise<void> {
  if (moves.length === 0) return;
  const now = await readNow(tx, engine.now);
  const rows = moves.map(({ row, from, ms }) => [row.key, leaseEndFrom(from ?? now, ms), BigInt(ms)]);
  await engine.updateRows(tx, 'rollouts', ['key'], ['lease_end_time', 'lease_ms'], rows);
}

/** Who requeues rollouts whose workers are silent, in their history. */
const SWEEPER = 'anabranch';

export async function sweepLeases(engine: Engine, limit: number): Promise<number> {
  let total = 0;
  for (let more = true; more && total < limit; ) {
    const size = Math.min(BATCH, limit - total);
    const { requeued, kept, changed } = await engine.write((tx) => sweepBatch(engine, tx, size));
    engine.announce(changed);
    total += requeued;
    // What was kept stands further back now; only what others hold is met again.
    more = requeued + kept >= size;
  }
  return total;
}

/** Rollouts of one transaction, so that none is held for long. */
const BATCH = 200;

interface Swept {
  readonly requeued: number;
  readonly kept: number;
  readonly changed: readonly bigint[];
}

async function sweepBatch(engine: Engine, tx: Tx, limit: number): Promise<Swept> {
  const ended = await lockEnded(engine, tx, await readNow(tx, engine.now), limit);
  const visible = await statusesOfRuns(
    engine,
    tx,
    ended.map(({ run }) => run),
  );
  // A deletion may have committed since the rows were selected: what is of its run is left to the purge.
  const rows = ended.filter(({ run }) => visible.has(run));
  if (rows.length === 0) return { requeued: 0, kept: 0, changed: [] };
  const heads = await lockAttempts(engine, tx, rows, 'never');
  const [now, ends] = await together([
    readNow(tx, engine.now),
    readAttemptEnds(
      engine,
      tx,
      rows.map(({ key }) => key),
    ),
  ]);
  const alive: LeaseMove[] = [];
  const silent: Leaving[] = [];
  for (const row of rows) {
    const [head, end] = [heads.get(row.key), ends.get(row.key)];
    // Somebody holds its trajectory, most likely to append to it: left for the next time.
    if (head === undefined && end !== undefined) continue;
    if (isKept(row, end, now)) alive.push({ row, from: end?.lastAppendTime, ms: row.lease_ms });
    else silent.push(silenced(row, head, end, now));
  }
  await moveLeaseEnds(engine, tx, alive);
  await requeue(engine, tx, now, silent);
  const changed = silent.flatMap(({ row }) => (row.trajectory === null ? [row.run] : [row.run, row.trajectory]));
  return { requeued: silent.length, kept: alive.length, changed: [...new Set(changed)] };
}

async function lockEnded(engine: Engine, tx: Tx, now: string, limit: number): Promise<LockedRollout[]> {
  const query = tx
    .selectFrom('rollouts as r')
    .selectAll('r')
    .where(IS_LIVE)
    .where('r.lease_end_time', '<', now)
    .where(sql<boolean>`not (select u.hidden from ${engine.table('runs')} as u where u.key = r.run)`)
    .orderBy('r.lease_end_time')
    .limit(limit);
  return (engine.name === 'sqlite' ? query : query.forNoKeyUpdate().skipLocked()).execute();
}

/** Q3: the last append to the attempt's trajectory keeps the lease as a heartbeat does. */
function isKept({ lease_ms }: LockedRollout, end: AttemptEnd | undefined, now: string): boolean {
  return end?.lastAppendTime !== undefined && leaseEndFrom(end.lastAppendTime, lease_ms) >= now;
}

function silenced(row: LockedRollout, head: LockedHead | undefined, end: AttemptEnd | undefined, now: string): Leaving {
  const heard = parseInstant(row.lease_end_time ?? now) - row.lease_ms * 1_000_000n;
  const appended = end?.lastAppendTime === undefined ? heard : parseInstant(end.lastAppendTime);
  const silence = parseInstant(now) - (appended > heard ? appended : heard);
  const message = `attempt ${row.attempt} lost its lease: no sign of life from worker "${row.worker_id}" for ${silence / 1_000_000_000n} s`;
  const caller = { namespace: row.namespace, actor: SWEEPER };
  return { caller, row, head, message, metadataJson: '' };
}
