import { StoreOpenError } from '../../contract/store.ts';
import type { Engine } from '../kit/engine.ts';

/** Errors: StoreOpenError if another version of the program has migrated the schema since it was opened. */
export async function requireSchema(engine: Engine & { readonly migrations: readonly string[] }): Promise<void> {
  const rows = await engine.db.selectFrom('kysely_migration').select('name').execute();
  const found = new Set(rows.map(({ name }) => name));
  const isSame = found.size === engine.migrations.length && engine.migrations.every((name) => found.has(name));
  if (!isSame) throw new StoreOpenError('The schema of the database is of another version of Anabranch.');
}
