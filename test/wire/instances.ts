import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import { type OutsideSql, outsideSql } from '../store/sql.ts';
import type { Engine } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { type SpawnedServer, spawnServer } from '../support/spawned-server.ts';

/**
 * The servers of one database, each a process of its own: two on Postgres, and one on SQLite, which allows one process
 * per file.
 */
export interface Instances {
  readonly servers: readonly SpawnedServer[];
  /** A connection to each server. */
  readonly clients: readonly AnabranchClient[];
  readonly sql: OutsideSql;
  /**
   * Makes this many concurrent calls, through all servers in turn. Returns their outcomes in the order of the calls.
   */
  race<T>(
    racers: number,
    call: (client: AnabranchClient, racer: number) => Promise<T>,
  ): Promise<PromiseSettledResult<T>[]>;
  [Symbol.asyncDispose](): Promise<void>;
}

export async function openInstances(engine: Engine): Promise<Instances> {
  await using all = new AsyncDisposableStack();
  const database = all.use(await createMigratedDatabase(engine));
  const servers: SpawnedServer[] = [];
  for (let i = 0; i < (engine === 'postgres' ? 2 : 1); i += 1)
    servers.push(all.use(await spawnServer({ database: database.url })));
  const clients = servers.map(({ url }) => all.adopt(connectClient({ address: url }), (client) => client.close()));
  const sql = all.adopt(await outsideSql(database), (opened) => opened.close());
  // Connects and makes a first call, so that a race starts without set-up.
  await Promise.all(clients.map((client) => client.runs.listExperiments({})));
  const kept = all.move();
  return {
    servers,
    clients,
    sql,
    race: (racers, call) =>
      Promise.allSettled(Array.from({ length: racers }, (_, i) => call(clients[i % clients.length]!, i))),
    [Symbol.asyncDispose]: () => kept.disposeAsync(),
  };
}

/** The answers of the calls that succeeded. */
export function answersOf<T>(outcomes: readonly PromiseSettledResult<T>[]): T[] {
  return outcomes.flatMap((outcome) => (outcome.status === 'fulfilled' ? [outcome.value] : []));
}

/** The errors of the other calls. */
export function errorsOf(outcomes: readonly PromiseSettledResult<unknown>[]): unknown[] {
  return outcomes.flatMap((outcome) => (outcome.status === 'rejected' ? [outcome.reason as unknown] : []));
}
