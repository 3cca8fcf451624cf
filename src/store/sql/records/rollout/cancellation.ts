import { sql } from 'kysely';
import type { Hint } from '../../../../domain/change.ts';
import type { RolloutsCancelled, RolloutsOf } from '../../../contract/run.ts';
import { findRunKeys } from '../../kit/by_id.ts';
import type { Engine, LockedHead } from '../../kit/engine.ts';
import { type CallerTransaction, scopeOf, type Transaction, write } from '../../kit/transaction.ts';
import { isSet } from '../../kit/values.ts';
import {
  type AttemptEnd,
  attemptValuesOf,
  endAttempts,
  lockAttempts,
  readAttemptEnds,
  readAttemptValues,
  rewardAt,
  turnsAt,
} from '../attempt/attempts.ts';
import { findStageKeys } from '../stage/rows.ts';
import { rolloutHints } from './hints.ts';
import { moveMany, type UnheldMove } from './requeueing.ts';
import { IS_LIVE, type LockedRollout, PENDING_LAST } from './rows.ts';

/** Bound on the rollouts that one transaction cancels. */
const BATCH = 200;

/** A run with all its stages, or one stage of it. */
export interface Cancelled {
  readonly run: bigint;
  /** `WHOLE_RUN` for all stages. */
  readonly stage: bigint;
}

/** Keys of stages begin at 1. */
export const WHOLE_RUN = 0n;

/**
 * Requests the cancellation of the rollouts of a run or stage. The caller holds the lock of that row, which is
 * terminal.
 */
export async function markRollouts(
  tx: CallerTransaction,
  of: Cancelled,
  { message, metadataJson }: { readonly message: string; readonly metadataJson: string },
): Promise<void> {
  const { namespace, actor } = tx.caller;
  const details = { namespace, actor, message, metadata_json: metadataJson };
  await tx.db
    .insertInto('rollout_cancellations')
    .values({ ...of, ...details, cancelled: 0n, open: 1 })
    .onConflict((conflict) => conflict.columns(['run', 'stage']).doUpdateSet({ open: 1 }))
    .execute();
}

/**
 * Withdraws the request when a run or stage is reopened. Rollouts that are not cancelled yet are kept. The caller holds
 * the lock of the row.
 */
export async function unmarkRollouts(tx: Transaction, of: Cancelled): Promise<void> {
  await tx.db
    .deleteFrom('rollout_cancellations')
    .where((eb) => eb.and({ ...of }))
    .execute();
}

export async function cancelNextRollouts(
  engine: Engine,
  namespace: string,
  of: RolloutsOf,
): Promise<RolloutsCancelled | undefined> {
  if ('runId' in of) {
    const { key: run } = await findRunKeys(scopeOf(engine, namespace), of.runId);
    return cancelBatch(engine, { run, stage: WHOLE_RUN });
  }
  const { key: stage, run } = await findStageKeys(scopeOf(engine, namespace), of.stageId);
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
  await cancelBatch(engine, mark);
  return true;
}

/**
 * Locks are taken in the order request, rollouts, trajectories, groups. The lock of the request serialises
 * cancellations, so that no rollout is counted twice, and blocks a reopening.
 */
async function cancelBatch(engine: Engine, of: Cancelled): Promise<RolloutsCancelled | undefined> {
  const transaction = (tx: Transaction) => cancelSome(tx, of);
  const { state, changed } = await engine.transactions.giveWayAfter(() => write(engine, transaction));
  engine.changes.announce(changed);
  return state;
}

async function cancelSome(
  tx: Transaction,
  of: Cancelled,
): Promise<{ readonly state: RolloutsCancelled | undefined; readonly changed: readonly Hint[] }> {
  const mark = await lockMark(tx, of);
  if (mark === undefined) return { state: undefined, changed: [] };
  if (!isSet(mark.open)) return { state: { cancelled: mark.cancelled, more: false }, changed: [] };
  const keys = await findOpenRollouts(tx, of);
  const rows = await lockOpenRollouts(tx, of, keys.slice(0, BATCH));
  const cancelled = mark.cancelled + BigInt(await cancelLocked(tx, mark, rows));
  const more = keys.length > 0;
  await writeMark(tx, of, cancelled, more);
  return { state: { cancelled, more }, changed: rolloutHints(rows) };
}

type Mark = NonNullable<Awaited<ReturnType<typeof lockMark>>>;

async function lockMark(tx: Transaction, of: Cancelled) {
  const query = tx.db
    .selectFrom('rollout_cancellations')
    .selectAll()
    .where((eb) => eb.and({ ...of }));
  return tx.engine.locks.rows(query, 'write').executeTakeFirst();
}

async function writeMark(tx: Transaction, of: Cancelled, cancelled: bigint, open: boolean): Promise<void> {
  await tx.db
    .updateTable('rollout_cancellations')
    .set({ cancelled, open: open ? 1 : 0 })
    .where((eb) => eb.and({ ...of }))
    .execute();
}

/**
 * Returns rollouts that are not terminal, live ones first. One statement reads both, so that a rollout that is claimed
 * or requeued meanwhile is found in one status. The partial indexes contain no terminal rollouts, so the cost of a
 * batch does not grow with cancelled ones.
 */
async function findOpenRollouts(tx: Transaction, { run, stage }: Cancelled): Promise<bigint[]> {
  const { engine } = tx;
  const ofStage = (column: string) => (stage === WHOLE_RUN ? sql`` : sql`and ${sql.ref(column)} = ${stage}`);
  const { rows } = await sql<{ readonly key: bigint }>`
    select l.key from (select r.key from ${engine.sql.table('rollouts')} as r
      where r.run = ${run} ${ofStage('r.stage')}
        and ${IS_LIVE} limit ${BATCH}) as l
    union all
    select p.key from (select r.key from ${engine.sql.table('stages')} as s
      cross join ${engine.sql.table('rollouts')} as r
      where s.run = ${run} ${ofStage('s.key')} and r.stage = s.key and r.status = 'PENDING' limit ${BATCH}) as p`.execute(
    tx.db,
  );
  return rows.map(({ key }) => key);
}

/** Omits rollouts that have ended. Returns none if the run was deleted, because the purge removes its rollouts. */
async function lockOpenRollouts(
  tx: Transaction,
  { run }: Cancelled,
  keys: readonly bigint[],
): Promise<LockedRollout[]> {
  if (keys.length === 0) return [];
  const query = tx.db
    .selectFrom('rollouts')
    .selectAll()
    .where(tx.engine.sql.among(sql.ref('key'), keys))
    .where(sql<boolean>`status in ('PENDING', 'INITIALIZING', 'RUNNING')`)
    .orderBy(PENDING_LAST)
    .orderBy('key');
  const rows = await tx.engine.locks.rows(query, 'write').execute();
  const visible = await tx.db.selectFrom('runs').select('key').where('key', '=', run).where('hidden', '=', 0).execute();
  return visible.length === 0 ? [] : rows;
}

/**
 * Cancels locked rollouts as CancelRollout does. Rollouts whose trajectories other transactions hold are left to the
 * next transaction. Returns the number of cancelled rollouts.
 */
async function cancelLocked(
  tx: Transaction,
  { namespace, actor, message, metadata_json: metadataJson }: Mark,
  rows: readonly LockedRollout[],
): Promise<number> {
  if (rows.length === 0) return 0;
  const caller = { namespace, actor };
  const pending = rows.filter(({ status }) => status === 'PENDING');
  const live = await lockLive(
    tx,
    rows.filter(({ status }) => status !== 'PENDING'),
    pending.length > 0,
  );
  await tx.readNow();
  const seals = live.map(({ row, head, end }) => {
    return { caller, rollout: row, head, status: 'CANCELLED', message, end } as const;
  });
  await endAttempts(tx, seals);
  const shown = await readAttemptValues(tx, pending);
  const moveOf = (row: LockedRollout): Omit<UnheldMove, 'shown' | 'ended'> => {
    return { caller, row, head: undefined, message, metadataJson, phase: row.phase, to: 'CANCELLED' };
  };
  const moves = [
    ...pending.map((row) => ({ ...moveOf(row), shown: shown(row.key), ended: undefined })),
    ...live.map(({ row, end }) => {
      return {
        ...moveOf(row),
        shown: { ...attemptValuesOf(row), reward: rewardAt(end), turns: turnsAt(end) },
        ended: end,
      };
    }),
  ];
  await moveMany(tx, moves);
  return moves.length;
}

interface LiveRollout {
  readonly row: LockedRollout;
  /** Undefined if the trajectory was deleted. */
  readonly head: LockedHead | undefined;
  readonly end: AttemptEnd | undefined;
}

/**
 * Waits for appends in progress only if there is nothing else to cancel, so that no writer waits for the trajectory of
 * another one.
 */
async function lockLive(tx: Transaction, rows: readonly LockedRollout[], others: boolean): Promise<LiveRollout[]> {
  if (rows.length === 0) return [];
  const keys = rows.map(({ key }) => key);
  for (const wait of ['never', 'bounded'] as const) {
    const heads = await lockAttempts(tx, rows, wait);
    const ends = await readAttemptEnds(tx, keys);
    const locked = rows
      .map((row): LiveRollout => ({ row, head: heads.get(row.key), end: ends.get(row.key) }))
      .filter(({ head, end }) => head !== undefined || end === undefined);
    if (locked.length > 0 || others) return locked;
  }
  return [];
}
