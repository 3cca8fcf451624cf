import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import { type OutsideSql, outsideSql } from '../store/sql.ts';
import type { Engine } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { spawnServer } from '../support/spawned-server.ts';
import { startTestServer } from '../support/test-server.ts';

/**
 * The servers of one database. On Postgres two: one in this process, and one in a process of its own. On SQLite, which
 * allows one process per file, only the former.
 */
export interface Instances {
  readonly servers: readonly { readonly url: string; readonly host: string; readonly port: number }[];
  /** A connection to each server. */
  readonly clients: readonly AnabranchClient[];
  readonly sql: OutsideSql;
  [Symbol.asyncDispose](): Promise<void>;
}

export async function openInstances(engine: Engine): Promise<Instances> {
  await using all = new AsyncDisposableStack();
  const database = all.use(await createMigratedDatabase(engine));
  const servers: { url: string; host: string; port: number }[] = [all.use(await startTestServer({ database }))];
  if (engine === 'postgres') servers.push(all.use(await spawnServer({ database: database.url })));
  const clients = servers.map(({ url }) => all.adopt(connectClient({ address: url }), (client) => client.close()));
  const sql = all.adopt(await outsideSql(database), (opened) => opened.close());
  const kept = all.move();
  return {
    servers,
    clients,
    sql,
    [Symbol.asyncDispose]: () => kept.disposeAsync(),
  };
}
