import { sql } from 'kysely';
import type { Caller } from '../../domain/caller.ts';
import type { Engine, Tx } from './engine.ts';
import { readFlag } from './rollout_rows.ts';
import type { LockedRollout } from './rollout_writing.ts';
import { CURRENT } from './validations.ts';

/** A locked rollout that is tried again, as it was before, and who has it so. */
export interface Again {
  readonly caller: Caller;
  readonly row: LockedRollout;
}

/** M3: only the current attempt counts, and what was found of earlier ones stays with them. Its rollout has ended, so it may have a result. */
export async function keepWithAttempt(engine: Engine, tx: Tx, now: string, { caller, row }: Again): Promise<void> {
  const { key, attempt, result, summary_json } = row;
  if (result !== '') {
    const own = tx.updateTable('attempts').set({ result, summary_json });
    await own.where('rollout', '=', key).where('number', '=', attempt).execute();
  }
  const found = tx.deleteFrom('validations').where('rollout', '=', key);
  if (attempt === 0n) await found.execute();
  else {
    // Of two words of a validator on one attempt, the second while nobody tried it, the later stands.
    const again = tx
      .selectFrom('validations')
      .select('validator')
      .where('rollout', '=', key)
      .where('attempt', '=', CURRENT);
    await found.where('attempt', '=', attempt).where('validator', 'in', again).execute();
  }
  await keepWithAttempts(engine, tx, now, [{ caller, row }]);
}

/** The same for many that were held until now, so that they have no result. */
export async function keepWithAttempts(engine: Engine, tx: Tx, now: string, rows: readonly Again[]): Promise<void> {
  if (rows.length === 0) return;
  const keys = rows.map(({ row }) => row.key);
  await sql`update ${engine.table('validations')} as v set attempt = r.attempt from ${engine.table('rollouts')} as r
    where r.key = v.rollout and v.attempt = ${CURRENT} and ${engine.among(sql.ref('v.rollout'), keys)}`.execute(tx);
  await withdrawOverrides(engine, tx, now, rows);
}

/** A verdict over an attempt says nothing of the next: the log tells that it stands no longer. */
async function withdrawOverrides(engine: Engine, tx: Tx, now: string, rows: readonly Again[]): Promise<void> {
  for (const { caller, row } of rows) {
    if (readFlag(row.override) === undefined) continue;
    const over = row.attempt === 0n ? 'it was cancelled' : `attempt ${row.attempt} is over`;
    const reason = `${over}: the next attempt is judged anew`;
    await sql`insert into ${engine.table('validation_overrides')} (rollout, ordinal, namespace, success, reason, actor, override_time)
      select o.rollout, max(o.ordinal) + 1, ${row.namespace}, null, ${reason}, ${caller.actor}, ${now}
      from ${engine.table('validation_overrides')} as o where o.rollout = ${row.key} group by o.rollout`.execute(tx);
  }
}
