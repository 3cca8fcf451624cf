import type { Store } from './contract/store.ts';
import type { WaitOptions } from './migrations/migrate.ts';
import type { ConversionProgress } from './migrations/migration.ts';
import { openPostgres } from './postgres/open.ts';
import { sqlStore } from './sql/store.ts';
import { openSqlite } from './sqlite/open.ts';

export type Database =
  | { readonly engine: 'sqlite'; readonly path: string }
  | {
      readonly engine: 'postgres';
      readonly url: string;
      readonly directUrl?: string;
      readonly poolSize?: number;
      readonly namedStatements?: boolean;
    };

export interface StoreDeps {
  /** Bytes of cached states, of which the next ones store the changes. Default: 64 MiB. */
  readonly stateCacheBytes?: number;
  readonly logger: Record<'info' | 'warn' | 'error', (details: object, message: string) => void>;
  /** Postgres only: waits until another process has migrated the schema. Default: migrates it. */
  readonly waiting?: WaitOptions | undefined;
}

/**
 * Opens the store, migrates its schema or waits for that, and checks that it is durable (D1). Errors: StoreOpenError,
 * with a message for the operator; AbortError if the wait was ended.
 */
export async function openStore(database: Database, { logger, stateCacheBytes, waiting }: StoreDeps): Promise<Store> {
  const onFault = (error: unknown) => logger.error({ err: error }, 'work of the store in the background failed');
  const log = (details: object, message: string) => logger.warn(details, message);
  const migrating = { onProgress: reporter(logger), log, waiting };
  if (database.engine === 'postgres')
    return sqlStore(await openPostgres(database, logger, onFault, migrating), stateCacheBytes);
  return sqlStore(await openSqlite(database.path, onFault, migrating), stateCacheBytes);
}

/** Time between two lines of the log. */
const REPORT_MS = 2000;

function reporter(logger: StoreDeps['logger']): (progress: ConversionProgress) => void {
  let last = performance.now();
  return ({ rows, done, total }) => {
    if (performance.now() - last < REPORT_MS) return;
    last = performance.now();
    logger.info({ rows, done, total }, 'migrating');
  };
}
