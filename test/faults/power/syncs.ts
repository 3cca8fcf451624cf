/** Appends under strace: how often a sync covers acked steps. */
import { connectClient, openWriter } from '../../../src/client/index.ts';
import { outsideSql } from '../../store/sql.ts';
import { createPostgresDatabase, type TestDatabase } from '../../support/database.ts';
import { requireIntact } from '../../support/intact.ts';
import { createMigratedDatabase } from '../../support/migrated_database.ts';
import type { SpawnedServer } from '../../support/spawned-server.ts';
import { startLoad } from '../acked/load.ts';
import { makeStep } from '../history/steps.ts';
import { countMergedRows, spawnMergingServer } from '../spawn-merging.ts';
import { type SyncTrace, startSyncTrace } from './strace.ts';

export interface Synced {
  /** Transactions that stored steps. */
  readonly commits: number;
  readonly syncs: number;
  readonly acked: number;
}

export interface Traced {
  /** One stream that waits for each ack before its next step: every step is a commit of its own. */
  readonly lockstep: Synced;
  /** Many streams at once, whose steps share commits. */
  readonly together: Synced;
  /** Rows that were merged meanwhile. */
  readonly mergedRows: number;
}

export interface Tracing {
  readonly steps: number;
  readonly writers: number;
  readonly sabotage?: (database: TestDatabase) => Promise<unknown>;
}

/** A server on an SQLite file, of which all syncs are counted. */
export async function traceSqlite(tracing: Tracing): Promise<Traced> {
  await using trace = await startSyncTrace();
  await using database = await createMigratedDatabase('sqlite');
  await using server = await spawnMergingServer({ database: database.url, wrapper: trace.wrapper });
  return await traceSyncs(trace, database, server, tracing);
}

/** A server on a database of this Postgres, whose syncs are counted. */
export async function tracePostgres(trace: SyncTrace, url: string, tracing: Tracing): Promise<Traced> {
  await using database = await createPostgresDatabase(url);
  await using server = await spawnMergingServer({ database: database.url });
  await tracing.sabotage?.(database);
  return await traceSyncs(trace, database, server, tracing);
}

async function traceSyncs(
  trace: SyncTrace,
  database: TestDatabase,
  server: SpawnedServer,
  { steps, writers }: Tracing,
): Promise<Traced> {
  const lockstep = await traceOne(trace, database, () => appendOneByOne(server, steps));
  const together = await traceOne(trace, database, () => appendTogether(server, writers, steps * writers));
  await verify(server);
  const sql = await outsideSql(database);
  const mergedRows = await countMergedRows(sql).finally(() => sql.close());
  return { lockstep, together, mergedRows };
}

async function verify({ url }: SpawnedServer): Promise<void> {
  const client = connectClient({ address: url });
  await requireIntact(client).finally(() => client.close());
}

async function traceOne(trace: SyncTrace, database: TestDatabase, append: () => Promise<number>): Promise<Synced> {
  const [commits, syncs] = [await commitsOf(database), await trace.syncs()];
  const acked = await append();
  return { commits: (await commitsOf(database)) - commits, syncs: (await trace.syncs()) - syncs, acked };
}

async function appendOneByOne(server: SpawnedServer, steps: number): Promise<number> {
  const client = connectClient({ address: server.url });
  const { trajectory } = await client.trajectories.createTrajectory({ name: 'one by one' });
  const writer = await openWriter(client, { trajectoryId: trajectory!.id });
  for (let i = 0; i < steps; i += 1) await writer.append(makeStep('one by one', writer.nextStepNumber));
  await writer.close();
  client.close();
  return steps;
}

async function appendTogether(server: SpawnedServer, writers: number, steps: number): Promise<number> {
  const load = await startLoad({ address: server.url, writers, window: 4 });
  await load.progress(steps);
  await load.stop();
  return load.acked;
}

/** All steps of one commit have the same commit time, which no other commit has. */
async function commitsOf(database: TestDatabase): Promise<number> {
  const sql = await outsideSql(database);
  try {
    const [row] = await sql.rows('select count(distinct commit_time) as n from steps');
    return Number(row!.n);
  } finally {
    await sql.close();
  }
}
