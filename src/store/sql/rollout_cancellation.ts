import { sql } from 'kysely';
import type { Caller } from '../../domain/caller.ts';
import type { RolloutsCancelled, RolloutsOf } from '../contract/run.ts';
import { readShown, shownOf } from './attempt_rows.ts';
import { type AttemptEnd, endAttempts, lockAttempts, readAttemptEnds, rewardAt, turnsAt } from './attempts.ts';
import type { Engine, LockedHead, Tx } from './engine.ts';
import { moveMany, type PendingMove } from './requeueing.ts';
import type { LockedRollout } from './rollout_writing.ts';
import { findRunKeys } from './run_keys.ts';
import { findStageKeys } from './stage_keys.ts';
import { readNow } from './trajectory_rows.ts';
import { isSet } from './values.ts';

/** Rollouts that one transaction cancels at most. */
const BATCH = 200;

/** Of a run, whose stages are all meant, or of one stage of it. */
interface Cancelled {
  readonly run: bigint;
  readonly stage: bigint | undefined;
}

/** Marks the rollouts of a run or stage to be cancelled. The row of that run or stage is locked, and terminal. */
export async function markRollouts(
  tx: Tx,
  { namespace, actor }: Caller,
  { run, stage }: Cancelled,
  { message, metadataJson }: { readonly message: string; readonly metadataJson: string },
): Promise<void> {
  const said = { namespace, actor, message, metadata_json: metadataJson };
  await tx
    .insertInto('rollout_cancellations')
    .values({ run, stage: stage ?? WHOLE_RUN, ...said, cancelled: 0n, open: 1 })
    .onConflict((conflict) => conflict.columns(['run', 'stage']).doUpdateSet({ open: 1 }))
    .execute();
}

/** Keys of stages begin at 1. */
const WHOLE_RUN = 0n;

/** A run or stage that is reopened keeps the rollouts that are not cancelled yet, and gets new ones. Its row is locked. */
export async function unmarkRollouts(tx: Tx, { run, stage }: Cancelled): Promise<void> {
  await tx
    .deleteFrom('rollout_cancellations')
    .where('run', '=', run)
    .where('stage', '=', stage ?? WHOLE_RUN)
    .execute();
}

export async function cancelNextRollouts(
  engine: Engine,
  namespace: string,
  of: RolloutsOf,
): Promise<RolloutsCancelled | undefined> {
  if ('runId' in of) {
    const { key: run } = await findRunKeys(engine, engine.db, namespace, of.runId);
    return cancelBatch(engine, { run, stage: undefined });
  }
  const { key: stage, run } = await findStageKeys(engine, engine.db, namespace, of.stageId);
  return cancelBatch(engine, { run, stage });
}

export async function cancelMarkedRollouts(engine: Engine): Promise<boolean> {
  const mark = await engine.db
    .selectFrom('rollout_cancellations as c')
    .innerJoin('runs as u', (join) => join.onRef('u.key', '=', 'c.run').on('u.hidden', '=', 0))
    .select(['c.run', 'c.stage'])
    .where(sql<boolean>`c.open`)
    .limit(1)
    .executeTakeFirst();
  if (mark === undefined) return false;
  const { run, stage } = mark;
  await cancelBatch(engine, { run, stage: stage === WHOLE_RUN ? undefined : stage });
  return true;
}

/**
 * Locks are taken mark, rollouts, trajectories, groups. The mark's lock lets one transaction at a time cancel, so that none is counted twice, and holds off a
 * reopening.
 */
async function cancelBatch(engine: Engine, of: Cancelled): Promise<RolloutsCancelled | undefined> {
  const transaction = (tx: Tx) => cancelSome(engine, tx, of);
  const { state, changed } = await engine.giveWayAfter(() => engine.write(transaction));
  engine.announce(changed);
  return state;
}

async function cancelSome(
  engine: Engine,
  tx: Tx,
  of: Cancelled,
): Promise<{ readonly state: RolloutsCancelled | undefined; readonly changed: readonly bigint[] }> {
  const mark = await lockMark(engine, tx, of);
  if (mark === undefined) return { state: undefined, changed: [] };
  if (!isSet(mark.open)) return { state: { cancelled: mark.cancelled, more: false }, changed: [] };
  const keys = await findOpenRollouts(engine, tx, of);
  const rows = await lockOpenRollouts(engine, tx, of, keys.slice(0, BATCH));
  const cancelled = mark.cancelled + BigInt(await cancelLocked(engine, tx, mark, rows));
  const more = keys.length > 0;
  await writeMark(tx, of, cancelled, more);
  const changed = rows.flatMap(({ run, trajectory }) => (trajectory === null ? [run] : [run, trajectory]));
  return { state: { cancelled, more }, changed: [...new Set(changed)] };
}

type Mark = NonNullable<Awaited<ReturnType<typeof lockMark>>>;

async function lockMark(engine: Engine, tx: Tx, { run, stage }: Cancelled) {
  const query = tx
    .selectFrom('rollout_cancellations')
    .selectAll()
    .where('run', '=', run)
    .where('stage', '=', stage ?? WHOLE_RUN);
  return engine.lock(query, 'write').executeTakeFirst();
}

async function writeMark(tx: Tx, { run, stage }: Cancelled, cancelled: bigint, open: boolean): Promise<void> {
  await tx
    .updateTable('rollout_cancellations')
    .set({ cancelled, open: open ? 1 : 0 })
    .where('run', '=', run)
    .where('stage', '=', stage ?? WHOLE_RUN)
    .execute();
}

/**
 * Rollouts that are not terminal, those that workers hold first. Read by one statement, so that one that is requeued or claimed meanwhile is found in either
 * status. The indexes of the queue and of live rollouts have no terminal ones, so that a batch costs the same however many were cancelled before.
 */
async function findOpenRollouts(engine: Engine, tx: Tx, { run, stage }: Cancelled): Promise<bigint[]> {
  const ofStage = stage === undefined ? sql`` : sql`and s.key = ${stage}`;
  const { rows } = await sql<{ readonly key: bigint }>`
    select l.key from (select r.key from ${engine.table('rollouts')} as r
      where r.run = ${run} ${stage === undefined ? sql`` : sql`and r.stage = ${stage}`}
        and r.status in ('INITIALIZING', 'RUNNING') limit ${BATCH}) as l
    union all
    select p.key from (select r.key from ${engine.table('stages')} as s
      cross join ${engine.table('rollouts')} as r
      where s.run = ${run} ${ofStage} and r.stage = s.key and r.status = 'PENDING' limit ${BATCH}) as p`.execute(tx);
  return rows.map(({ key }) => key);
}

/** Without those that have ended by now. A deletion of the run that held them has committed by now: what is of its run is left to the purge. */
async function lockOpenRollouts(
  engine: Engine,
  tx: Tx,
  { run }: Cancelled,
  keys: readonly bigint[],
): Promise<LockedRollout[]> {
  if (keys.length === 0) return [];
  const query = tx
    .selectFrom('rollouts')
    .selectAll()
    .where(engine.among(sql.ref('key'), keys))
    .where(sql<boolean>`status in ('PENDING', 'INITIALIZING', 'RUNNING')`)
    .orderBy('key');
  const rows = await engine.lock(query, 'write').execute();
  const visible = await tx.selectFrom('runs').select('key').where('key', '=', run).where('hidden', '=', 0).execute();
  return visible.length === 0 ? [] : rows;
}

/** Cancels locked rollouts as CancelRollout does. Those whose trajectories others hold are left for the next transaction. Returns how many were cancelled. */
async function cancelLocked(
  engine: Engine,
  tx: Tx,
  { namespace, actor, message, metadata_json: metadataJson }: Mark,
  rows: readonly LockedRollout[],
): Promise<number> {
  if (rows.length === 0) return 0;
  const caller = { namespace, actor };
  const pending = rows.filter(({ status }) => status === 'PENDING');
  const live = await lockLive(
    engine,
    tx,
    rows.filter(({ status }) => status !== 'PENDING'),
    pending.length > 0,
  );
  const now = await readNow(tx, engine.now);
  const seals = live.map(({ row, head, end }) => {
    return { caller, rollout: row, head, status: 'CANCELLED', message, end } as const;
  });
  await endAttempts(engine, tx, now, seals);
  const shown = await readShown(engine, tx, pending);
  const moveOf = (row: LockedRollout): Omit<PendingMove, 'shown' | 'ended'> => {
    return { caller, row, head: undefined, message, metadataJson, phase: row.phase, to: 'CANCELLED' };
  };
  const moves = [
    ...pending.map((row) => ({ ...moveOf(row), shown: shown(row.key), ended: undefined })),
    ...live.map(({ row, end }) => {
      return { ...moveOf(row), shown: { ...shownOf(row), reward: rewardAt(end), turns: turnsAt(end) }, ended: end };
    }),
  ];
  await moveMany(engine, tx, now, moves);
  return moves.length;
}

interface LiveRollout {
  readonly row: LockedRollout;
  /** Undefined: its trajectory is gone. */
  readonly head: LockedHead | undefined;
  readonly end: AttemptEnd | undefined;
}

/** Waits for appends in flight only if there is nothing else to cancel, so that no writer waits behind another one's trajectory. */
async function lockLive(
  engine: Engine,
  tx: Tx,
  rows: readonly LockedRollout[],
  others: boolean,
): Promise<LiveRollout[]> {
  if (rows.length === 0) return [];
  const keys = rows.map(({ key }) => key);
  for (const wait of ['never', 'bounded'] as const) {
    const heads = await lockAttempts(engine, tx, rows, wait);
    const ends = await readAttemptEnds(engine, tx, keys);
    const locked = rows
      .map((row): LiveRollout => ({ row, head: heads.get(row.key), end: ends.get(row.key) }))
      .filter(({ head, end }) => head !== undefined || end === undefined);
    if (locked.length > 0 || others) return locked;
  }
  return [];
}
