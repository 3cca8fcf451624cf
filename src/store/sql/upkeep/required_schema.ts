import { StoreOpenError } from '../../contract/store.ts';
import type { Engine } from '../kit/engine.ts';

/** Errors: StoreOpenError if the schema has become one that this program cannot serve since it was opened. */
export async function requireSchema(
  engine: Engine & { readonly canServe: (migrations: readonly string[]) => boolean },
): Promise<void> {
  const rows = await engine.db.selectFrom('kysely_migration').select('name').execute();
  if (engine.canServe(rows.map(({ name }) => name))) return;
  throw new StoreOpenError('The schema of the database is of another version of Anabranch.');
}
