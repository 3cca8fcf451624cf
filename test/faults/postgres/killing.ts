/** Kills Postgres with all its processes during commits, repeatedly, under writers that never pause. */
import { connectClient } from '../../../src/client/index.ts';
import { createPostgresDatabase, type TestDatabase } from '../../support/database.ts';
import { type PostgresServer, startPostgres } from '../../support/postgres.ts';
import type { SpawnedServer } from '../../support/spawned-server.ts';
import { checkAcked, type Verdict } from '../acked/check.ts';
import { startLoad } from '../acked/load.ts';
import type { Random } from '../random.ts';
import { spawnMergingServer } from '../spawn-merging.ts';
import { connectionsLeft } from './connections.ts';
import { type Answer, askAll, untilServed } from './outage.ts';

export interface Killing {
  readonly kills: number;
  readonly writers: number;
  readonly random: Random;
  /** Of Postgres. */
  readonly settings?: Readonly<Record<string, string>>;
  /** Weakens the database behind the server's back, once its schema exists. For tests of the test. */
  readonly sabotage?: (database: TestDatabase) => Promise<unknown>;
}

/** The state of the server. */
export interface Aftermath {
  /** The process is the one that was started. */
  readonly serverLived: boolean;
  /** Lines of its log that report internal errors. */
  readonly serverFaults: readonly string[];
}

export interface Survived extends Verdict, Aftermath {
  readonly kills: number;
  /** Unacked steps when Postgres was killed; the fewest of all kills. */
  readonly inFlight: number;
  readonly storedUnacked: number;
  readonly cuts: number;
  /** Errors that users of the client helper would have seen. */
  readonly failures: readonly string[];
  /** Every answer while Postgres was down. */
  readonly answers: readonly Answer[];
  /** The longest time from Postgres accepting connections to the server serving again. */
  readonly recoveryMs: number;
  readonly connectionsLeft: number;
}

export async function killPostgres(killing: Killing): Promise<Survived> {
  await using postgres = await startPostgres({ settings: killing.settings ?? {} });
  await using database = await createPostgresDatabase(postgres.url);
  await using server = await spawnMergingServer({ database: database.url });
  await killing.sabotage?.(database);
  return await runKills(killing, postgres, database, server);
}

async function runKills(
  { kills, writers, random }: Killing,
  postgres: PostgresServer,
  database: TestDatabase,
  server: SpawnedServer,
): Promise<Survived> {
  const client = connectClient({ address: server.url });
  const { trajectory } = await client.trajectories.createTrajectory({ name: 'asked for' });
  const load = await startLoad({ address: server.url, writers });
  const answers: Answer[] = [];
  const inFlight: number[] = [];
  let recoveryMs = 0;
  for (let kill = 0; kill < kills; kill += 1) {
    await load.everyone();
    await load.progress(random.between(50, 1000));
    inFlight.push(load.inFlight);
    await postgres.killAll();
    answers.push(...(await askAll(client, trajectory!.id)));
    await postgres.restart();
    const served = await untilServed(client, trajectory!.id);
    answers.push(...served.answers);
    recoveryMs = Math.max(recoveryMs, served.ms);
  }
  await load.everyone();
  const ledgers = await load.stop();
  const verdict = await checkAcked(client, database, ledgers);
  const left = await connectionsLeft(database);
  client.close();
  return {
    ...verdict,
    kills,
    inFlight: Math.min(...inFlight),
    storedUnacked: load.storedUnacked,
    cuts: load.cuts,
    failures: load.failures.map(({ message }) => message),
    answers,
    recoveryMs,
    connectionsLeft: left,
    ...(await aftermath(server)),
  };
}

export async function aftermath(server: SpawnedServer): Promise<Aftermath> {
  const ended = await Promise.race([server.exited, Promise.resolve(undefined)]);
  const serverFaults = server
    .output()
    .split('\n')
    .filter((line) => /internal error|unhandled|uncaught/iu.test(line));
  return { serverLived: ended === undefined, serverFaults };
}
