/** Servers on one database, each behind a proxy that outlives it. */
import { behindPooler, type Engine, type TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import type { SpawnedServer } from '../support/spawned-server.ts';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.ts';

/** What serves in a scene of faults. */
export interface Installation {
  readonly engine: Engine;
  /** Default: 1. Only Postgres can have more. */
  readonly servers?: number;
  /** Whether a pgbouncer is between the servers and Postgres. */
  readonly isPooled?: boolean;
}

export interface Instance {
  /** The server that runs now, or ran last. */
  readonly server: SpawnedServer;
  readonly proxy: TcpProxy;
  /** Kills the server by SIGKILL, and cuts the connections of its clients. */
  kill(): Promise<void>;
  /** Starts another server in the place of the one that was killed. */
  restart(): Promise<void>;
}

export async function createDatabaseOf({ engine, isPooled }: Installation): Promise<TestDatabase> {
  const database = await createMigratedDatabase(engine);
  return isPooled ? behindPooler(database) : database;
}

/** Starts all servers. The stack kills those that still run. */
export function startInstances(
  { servers = 1 }: Installation,
  start: () => Promise<SpawnedServer>,
  stack: AsyncDisposableStack,
): Promise<readonly Instance[]> {
  return Promise.all(Array.from({ length: servers }, () => startInstance(start, stack)));
}

async function startInstance(start: () => Promise<SpawnedServer>, stack: AsyncDisposableStack): Promise<Instance> {
  let server = await start();
  stack.defer(async () => void (await server.kill()));
  const proxy = stack.use(await startTcpProxy(server));
  return {
    get server() {
      return server;
    },
    proxy,
    async kill() {
      const killed = server.kill();
      proxy.cut();
      await killed;
    },
    async restart() {
      server = await start();
      proxy.retarget(server);
    },
  };
}
