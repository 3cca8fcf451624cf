import { CHUNK } from '../../kit/statement_shapes.ts';
import type { Transaction } from '../../kit/transaction.ts';

/** Estimated rows per rollout or environment. A batch has this many times fewer rollouts than rows to remove. */
const ROWS_EACH = 5;

/**
 * B4: deletes rollouts of a deleted run with all their rows, except trajectories. The rollouts are locked first,
 * because writers of these rows hold that lock, so nothing is written after the purge. Removes about `limit` rows and
 * returns how many.
 */
export async function purgeRollouts(tx: Transaction, run: bigint, limit: number): Promise<number> {
  return purgeBatches(limit, async (count) => {
    const some = tx.db.selectFrom('rollouts').select('key').where('run', '=', run).limit(count);
    const rows = await tx.engine.locks.rows(some, 'delete').execute();
    if (rows.length === 0) return 0;
    const keys = rows.map(({ key }) => key);
    let purged = await purgeChanges(tx, run, 'ROLLOUT', keys);
    for (const table of ['attempts', 'validations', 'validation_overrides', 'rollout_environments'] as const) {
      const { numDeletedRows } = await tx.db.deleteFrom(table).where('rollout', 'in', keys).executeTakeFirst();
      purged += Number(numDeletedRows);
    }
    const { numDeletedRows } = await tx.db.deleteFrom('rollouts').where('key', 'in', keys).executeTakeFirst();
    return purged + Number(numDeletedRows);
  });
}

/** Deletes the environments of a run with their links to rollouts. */
export async function purgeEnvironments(tx: Transaction, run: bigint, limit: number): Promise<number> {
  return purgeBatches(limit, async (count) => {
    const rows = await tx.db.selectFrom('environments').select('key').where('run', '=', run).limit(count).execute();
    if (rows.length === 0) return 0;
    const keys = rows.map(({ key }) => key);
    const changes = await purgeChanges(tx, run, 'ENVIRONMENT', keys);
    const uses = await tx.db.deleteFrom('rollout_environments').where('environment', 'in', keys).executeTakeFirst();
    const { numDeletedRows } = await tx.db.deleteFrom('environments').where('key', 'in', keys).executeTakeFirst();
    return changes + Number(uses.numDeletedRows) + Number(numDeletedRows);
  });
}

export async function purgeGroups(tx: Transaction, run: bigint, limit: number): Promise<number> {
  const some = tx.db.selectFrom('groups').select('key').where('run', '=', run).limit(limit);
  const { numDeletedRows } = await tx.db.deleteFrom('groups').where('key', 'in', some).executeTakeFirst();
  return Number(numDeletedRows);
}

/** Purges batches until `limit` rows are removed or none is left. */
async function purgeBatches(limit: number, purgeSome: (count: number) => Promise<number>): Promise<number> {
  let purged = 0;
  while (purged < limit) {
    const count = Math.min(CHUNK, Math.max(1, Math.floor((limit - purged) / ROWS_EACH)));
    const rows = await purgeSome(count);
    if (rows === 0) break;
    purged += rows;
  }
  return purged;
}

async function purgeChanges(
  tx: Transaction,
  run: bigint,
  noun: 'ROLLOUT' | 'ENVIRONMENT',
  keys: readonly bigint[],
): Promise<number> {
  const { numDeletedRows } = await tx.db
    .deleteFrom('status_changes')
    .where('tree', '=', run)
    .where('entity_kind', '=', noun)
    .where('entity', 'in', keys)
    .executeTakeFirst();
  return Number(numDeletedRows);
}
