import { randomUUID } from 'node:crypto';
import { statSync } from 'node:fs';
import { copyFile, writeFile } from 'node:fs/promises';
import { DatabaseSync } from 'node:sqlite';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { OnBranches } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type AnabranchClient, connectClient, openWriter, readSteps, reasonOf } from '../../src/client/index.ts';
import { runCli } from '../cli/run_cli.ts';
import { outsideSql, sqlitePath } from '../store/sql.ts';
import { createDatabase, ON_POSTGRES, type TestDatabase } from '../support/database.ts';
import { fill } from '../support/filled.ts';
import { requireIntact } from '../support/intact.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTestServer } from '../support/test-server.ts';

const MIB = 1024 * 1024;
/** MiB that an idle server may leave free, and a little more. */
const MOST_FREE = 9;

async function vacuum(client: AnabranchClient): Promise<{ freedBytes: bigint; freeBytes: bigint } | undefined> {
  let last: { freedBytes: bigint; freeBytes: bigint } | undefined;
  for await (const progress of client.admin.vacuumDatabase({})) last = progress;
  return last;
}

/** Returns the bytes of a backup. */
async function backUp(client: AnabranchClient): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  for await (const { chunk } of client.admin.backupDatabase({})) chunks.push(chunk);
  return Buffer.concat(chunks);
}

async function countSteps(client: AnabranchClient, trajectoryId: string): Promise<number> {
  let steps = 0;
  for await (const _ of readSteps(client, { trajectoryId })) steps += 1;
  return steps;
}

it('V3: the space of deleted steps is returned beside a writer, readers and a backup, and the database stays intact', async () => {
  await using server = await startTestServer();
  const client = connectClient({ address: server.url });
  const deleted = await fill(client, 6);
  const kept = await fill(client, 1);
  // The newest pages are only in the log.
  const sql = await outsideSql(server.database);
  const [pages] = await sql.rows('pragma page_count');
  await sql.close();
  await client.trajectories.deleteTrajectory({ trajectoryId: deleted, onBranches: OnBranches.REFUSE });
  const writing = fill(client, 1);
  const [last, copy, steps] = await Promise.all([vacuum(client), backUp(client), countSteps(client, kept)]);
  await writing;
  expect(steps).toBe(4);
  await using restored = await createDatabase('sqlite');
  await writeFile(sqlitePath(restored), copy);
  await using other = await startTestServer({ database: restored });
  const copied = connectClient({ address: other.url });
  await requireIntact(copied);
  expect(await countSteps(copied, kept)).toBe(4);
  copied.close();
  expect(last!.freedBytes).toBeGreaterThan(2n * 1024n * 1024n);
  expect(last!.freeBytes).toBe(0n);
  await requireIntact(client);
  expect((await client.trajectories.getTrajectory({ trajectoryId: kept })).trajectory?.nextStepNumber).toBe(4n);
  client.close();
  await server.drain();
  expect(statSync(sqlitePath(server.database)).size).toBeLessThan((Number(pages!.page_count) * 4096) / 2);
});

describe('a file of many rows', () => {
  let many: TestDatabase;
  let trajectoryId: string;
  beforeAll(async () => {
    many = await createMigratedDatabase('sqlite');
    const filling = await startTestServer({ database: many, settings: { mergeIdleMs: 0, freeSpaceMs: 0 } });
    const writing = connectClient({ address: filling.url });
    trajectoryId = randomUUID();
    const writer = await openWriter(writing, { trajectoryId, create: { trajectory: {} } });
    // A merge makes next to nothing of them. Each has a commit of its own and less than 16 KiB, because larger rows are
    // compressed before it.
    const infoJson = JSON.stringify('word '.repeat(3_000));
    for (let i = 0; i < 1100; i += 1) {
      await writer.append({ infoJson });
      await writer.flush();
    }
    await writer.close();
    writing.close();
    await filling.stop();
  });
  afterAll(() => many?.drop());

  // A merge and the deletion leave less than 1 MiB in use.
  it.each(['deleted', 'merged'])(
    'V3: the space of %s rows is returned without a call, and the database stays intact',
    async (cause) => {
      await using database = await createDatabase('sqlite');
      await copyFile(sqlitePath(many), sqlitePath(database));
      const size = () => statSync(sqlitePath(database)).size;
      const before = size();
      expect(before).toBeGreaterThan(15 * MIB);
      const mergeIdleMs = cause === 'merged' ? 20 : 0;
      await using server = await startTestServer({ database, settings: { mergeIdleMs, freeSpaceMs: 20 } });
      const client = connectClient({ address: server.url });
      if (cause === 'deleted') await client.trajectories.deleteTrajectory({ trajectoryId });
      await vi.waitFor(() => expect(size()).toBeLessThan(MOST_FREE * MIB), { timeout: 60_000, interval: 20 });
      await requireIntact(client);
      client.close();
    },
  );

  it('V3: space that another program still reads is returned when it has stopped, without a call or a write', async () => {
    await using database = await createDatabase('sqlite');
    await copyFile(sqlitePath(many), sqlitePath(database));
    const size = () => statSync(sqlitePath(database)).size;
    const before = size();
    await using server = await startTestServer({ database, settings: { mergeIdleMs: 0, freeSpaceMs: 20 } });
    const reader = new DatabaseSync(sqlitePath(database), { readOnly: true });
    reader.exec('begin');
    const pages = () => Number(reader.prepare('pragma page_count').get()!.page_count);
    const held = pages();
    const client = connectClient({ address: server.url });
    await client.trajectories.deleteTrajectory({ trajectoryId });
    const sql = await outsideSql(database);
    const others = async () => Number((await sql.rows('pragma page_count'))[0]!.page_count);
    await expect.poll(others).toBeLessThan(held / 2);
    expect([pages(), size()]).toEqual([held, before]);
    await sql.close();
    reader.close();
    await vi.waitFor(() => expect(size()).toBeLessThan(MOST_FREE * MIB), { timeout: 60_000, interval: 20 });
    client.close();
  });
});

it('V3: a file that no server uses is rewritten without free space, and stays intact', async () => {
  await using database = await createMigratedDatabase('sqlite');
  const first = await startTestServer({ database, settings: { freeSpaceMs: 0 } });
  const client = connectClient({ address: first.url });
  await client.trajectories.deleteTrajectory({ trajectoryId: await fill(client, 4) });
  const served = await runCli(['vacuum', '--database', database.url]);
  expect([served.code, served.stderr]).toEqual([1, expect.stringContaining('is in use by process')]);
  client.close();
  await first.stop();
  const { code, stdout } = await runCli(['vacuum', '--database', database.url]);
  expect([code, stdout]).toEqual([0, expect.stringMatching(/^Returned [\d.]+ (?:KiB|MiB)\.\n$/)]);
  await using second = await startTestServer({ database });
  const again = connectClient({ address: second.url });
  expect(await vacuum(again)).toMatchObject({ freedBytes: 0n, freeBytes: 0n });
  await requireIntact(again);
  const { stdout: text } = await runCli(['vacuum', '--json', '--address', second.url]);
  expect(JSON.parse(text)).toEqual({ freedBytes: '0' });
  again.close();
});

it.runIf(ON_POSTGRES)('V3: on Postgres the call is refused', async () => {
  await using server = await startTestServer({ engine: 'postgres' });
  const client = connectClient({ address: server.url });
  expect(reasonOf(await vacuum(client).catch((error: unknown) => error))).toBe('SQLITE_ONLY');
  client.close();
});
