/** Appends under strace: how often a sync covers acked steps. */
import { connectClient, openWriter } from '../../../src/client/index.ts';
import { outsideSql } from '../../store/sql.ts';
import { createDatabase, createPostgresDatabase, type Engine, type TestDatabase } from '../../support/database.ts';
import { requireIntact } from '../../support/intact.ts';
import { startPostgres } from '../../support/postgres.ts';
import type { SpawnedServer } from '../../support/spawned-server.ts';
import { startLoad } from '../acked/load.ts';
import { makeStep } from '../history/steps.ts';
import { countMergedRows, spawnMergingServer } from '../spawn-merging.ts';
import { countSyncs, familyOf } from './strace.ts';

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

export async function traceSyncs(engine: Engine, { steps, writers, sabotage }: Tracing): Promise<Traced> {
  const postgres = engine === 'postgres' ? await startPostgres() : undefined;
  try {
    await using database =
      postgres === undefined ? await createDatabase('sqlite') : await createPostgresDatabase(postgres.url);
    await using server = await spawnMergingServer({ database: database.url });
    await sabotage?.(database);
    const syncer = postgres?.pid ?? server.pid;
    const lockstep = await traceOne(database, syncer, () => appendOneByOne(server, steps));
    const together = await traceOne(database, syncer, () => appendTogether(server, writers, steps * writers));
    await verify(server);
    const sql = await outsideSql(database);
    const mergedRows = await countMergedRows(sql).finally(() => sql.close());
    return { lockstep, together, mergedRows };
  } finally {
    await postgres?.stop();
  }
}

async function verify({ url }: SpawnedServer): Promise<void> {
  const client = connectClient({ address: url });
  await requireIntact(client).finally(() => client.close());
}

async function traceOne(database: TestDatabase, syncer: number, append: () => Promise<number>): Promise<Synced> {
  const before = await commitsOf(database);
  let acked = 0;
  const { syncs } = await countSyncs(await familyOf(syncer), async () => {
    acked = await append();
  });
  return { commits: (await commitsOf(database)) - before, syncs, acked };
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
