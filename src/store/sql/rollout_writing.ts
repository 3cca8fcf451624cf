import { type Selectable, sql, type Updateable } from 'kysely';
import { rolloutNotFound } from '../../domain/errors.ts';
import { formatInstant, parseInstant } from '../../domain/instant.ts';
import type { Status } from '../../domain/lifecycle.ts';
import type { Held } from '../../domain/rollout_moves.ts';
import type { Engine, Tx } from './engine.ts';
import type { RolloutsTable } from './tables.ts';

export type LockedRollout = Selectable<RolloutsTable>;

/** A rollout's row, locked for writing. Errors: ROLLOUT_NOT_FOUND. */
export async function lockRollout(engine: Engine, tx: Tx, namespace: string, id: string): Promise<LockedRollout> {
  const query = tx
    .selectFrom('rollouts as r')
    .selectAll('r')
    .where('r.namespace', '=', namespace)
    .where('r.id', '=', id)
    // Of a run that was deleted nothing is there; its row is not locked for that (Q4).
    .where(sql<boolean>`exists (select 1 from ${engine.table('runs')} as u where u.key = r.run and not u.hidden)`);
  const row = await engine.lock(query, 'write').executeTakeFirst();
  if (row === undefined) throw rolloutNotFound(id);
  return row;
}

/** What of a row decides what may be done with it. */
export function heldOf(row: Pick<LockedRollout, 'id' | 'status' | 'attempt' | 'lease_ms'>): Held {
  return { id: row.id, status: row.status as Status, attempt: Number(row.attempt), held: row.lease_ms > 0n };
}

/** Every write of one rollout's row: it counts as a change for those who watch its run (M5), who are to be told once it is committed. */
export async function writeRollout(
  engine: Engine,
  tx: Tx,
  key: bigint,
  now: string,
  changes: Updateable<RolloutsTable>,
): Promise<void> {
  const mark = await engine.changeMark(tx);
  await tx
    .updateTable('rollouts')
    .set((eb) => ({ ...changes, update_time: now, mark, revision: eb('revision', '+', 1n) }))
    .where('key', '=', key)
    .execute();
}

/** When a lease that lasts so long from a time of the database's ends. */
export function leaseEndFrom(now: string, leaseMs: number | bigint): string {
  return formatInstant(parseInstant(now) + BigInt(leaseMs) * 1_000_000n, 6);
}
