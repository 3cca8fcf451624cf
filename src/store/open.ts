import type { Store } from './contract/store.ts';
import { openPostgres } from './postgres/open.ts';
import { sqlStore } from './sql/store.ts';
import { openSqlite } from './sqlite/open.ts';

export type Database =
  | { readonly engine: 'sqlite'; readonly path: string }
  | {
      readonly engine: 'postgres';
      readonly url: string;
      readonly poolSize?: number;
      readonly namedStatements?: boolean;
    };

export interface StoreDeps {
  /** Bytes of cached states, of which the next ones store the changes. Default: 64 MiB. */
  readonly stateCacheBytes?: number;
  readonly logger: { warn(details: object, message: string): void; error(details: object, message: string): void };
}

/**
 * Opens the store, migrates its schema, and checks that it is durable (D1). Errors: StoreOpenError, with a message for
 * the operator.
 */
export async function openStore(database: Database, { logger, stateCacheBytes }: StoreDeps): Promise<Store> {
  const onFault = (error: unknown) => logger.error({ err: error }, 'a listener of the store failed');
  const engine =
    database.engine === 'sqlite'
      ? await openSqlite(database.path, onFault)
      : await openPostgres(database, logger, onFault);
  return sqlStore(engine, stateCacheBytes);
}
