import type { FleSource } from './source.ts';
import { openSqliteSource } from './sqlite_source.ts';

/** Location of a database of FLE. */
export type FleDatabase =
  | { readonly engine: 'sqlite'; readonly path: string }
  | { readonly engine: 'postgres'; readonly url: string };

/**
 * Opens a database of FLE for reading. `name` is used in messages and must not contain a password. Errors:
 * FleImportError.
 */
export async function openFleSource(database: FleDatabase, name: string): Promise<FleSource> {
  if (database.engine === 'sqlite') return openSqliteSource(database.path);
  // Loaded on demand: the driver is large, and most sources are SQLite files.
  const { openPostgresSource } = await import('./postgres_source.ts');
  return openPostgresSource(database.url, `Postgres ${name}`);
}
