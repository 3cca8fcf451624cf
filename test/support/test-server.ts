/** The service inside the process of the test: a real server on a real socket and a real store, on a free port. */
import process from 'node:process';
import { pino } from 'pino';
import { loadConfig } from '../../src/config/config.ts';
import { type RunningServer, type ServerDeps, serveStore, startServer } from '../../src/server.ts';
import type { Store } from '../../src/store/contract/store.ts';
import { openStore } from '../../src/store/open.ts';
import type { Engine, TestDatabase } from './database.ts';
import { createMigratedDatabase } from './migrated_database.ts';
import { sharedValidator } from './shared_validator.ts';

export interface TestServerOptions {
  /** Default: `sqlite`. */
  readonly engine?: Engine;
  /** A database that belongs to the test: several servers may share one on Postgres, one after the other on SQLite. */
  readonly database?: TestDatabase;
  /** Settings by the flag names of `serve`, in camel case: `{ drainSeconds: '1' }`. */
  readonly flags?: Readonly<Record<string, string>>;
  /** Replaces the limits of its port. */
  readonly portLimits?: ServerDeps['portLimits'];
  /** Replaces times of the keys and files that tell who calls. */
  readonly identityTimes?: ServerDeps['identityTimes'];
  /** Default: its metrics are only its own. */
  readonly processMetrics?: ServerDeps['processMetrics'];
  /** Replaces its store. */
  readonly wrap?: (store: Store) => Store;
  /** Called with each line that it logs, at the level `trace`. */
  readonly onLog?: (line: string) => void;
  /** Replaces settings of its app, for example how often it looks for work. */
  readonly settings?: ServerDeps['settings'];
}

export interface TestServer extends RunningServer {
  readonly database: TestDatabase;
  /** Drains it, and drops its database unless it belongs to the test. Safe to call twice. */
  stop(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** `TEST_LOG_LEVEL=debug` shows what the server logs; it is silent otherwise. */
export async function startTestServer(options: TestServerOptions = {}): Promise<TestServer> {
  const database = options.database ?? (await createMigratedDatabase(options.engine ?? 'sqlite'));
  const flags = { listen: '127.0.0.1:0', database: database.url, ...options.flags };
  const config = loadConfig({ env: {}, flags, cwd: '/', readFile: () => undefined });
  const { portLimits, settings, identityTimes, processMetrics, onLog, wrap } = options;
  const logger =
    onLog === undefined
      ? pino({ level: process.env.TEST_LOG_LEVEL ?? 'silent' })
      : pino({ level: 'trace' }, { write: onLog });
  const given = { ...(portLimits && { portLimits }), ...(settings && { settings }) };
  const deps = { logger, validator: sharedValidator(), identityTimes, processMetrics, ...given };
  const server =
    wrap === undefined
      ? await startServer(config, deps)
      : await serveStore(wrap(await openStore(config.database, { logger })), config, deps);
  const stop = async () => {
    await server.drain();
    if (options.database === undefined) await database.drop();
  };
  return { ...server, database, stop, [Symbol.asyncDispose]: stop };
}
