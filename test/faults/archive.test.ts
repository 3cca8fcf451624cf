import { randomBytes } from 'node:crypto';
import { mkdtemp, open, readdir, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type AnabranchClient, connectClient, openWriter, reasonOf } from '../../src/client/index.ts';
import { runCli } from '../cli/run_cli.ts';
import { verifiedLinesIn } from '../store/archived.ts';
import { openOn } from '../store/on_store.ts';
import { expectVerified } from '../store/verified.ts';
import { ENGINES } from '../support/database.ts';
import { dose } from '../support/dose.ts';
import { requireIntact } from '../support/intact.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { spawnServer } from '../support/spawned-server.ts';
import { startTestServer } from '../support/test-server.ts';
import { databaseOn } from './disk/databases.ts';
import { mountSmallDisk, type SmallDisk } from './disk/small-disk.ts';
import { reportFigures } from './figures.ts';

const ID = '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c5b6e';
const CHUNK_BYTES = 64 * 1024;
const STEPS = 64;

let folder: string;
let archive: string;
let size: number;
let lines: string[];

/** An archive of a trajectory with 16 MiB that do not compress: several transactions of an import. */
beforeAll(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-archives-'));
  archive = path.join(folder, 'whole.tar.zst');
  await using database = await createMigratedDatabase('sqlite');
  await using server = await startTestServer({ database });
  const client = connectClient({ address: server.url });
  const writer = await openWriter(client, { trajectoryId: ID, create: { trajectory: {} } });
  for (let i = 0; i < STEPS; i += 1) await writer.append({ reward: i, states: { env: randomBytes(256 * 1024) } });
  await writer.close();
  client.close();
  expect((await runCli(['export', archive, '--address', server.url])).code).toBe(0);
  await server.stop();
  lines = await verifiedLinesIn(database);
  const file = await open(archive);
  size = (await file.stat()).size;
  await file.close();
});
afterAll(() => rm(folder, { recursive: true, force: true }));

/** The chunks of the archive. `at` is called before each of them with the bytes that were sent. */
async function* chunks(at: (sent: number) => Promise<void>): AsyncGenerator<{ chunk: Uint8Array }> {
  const file = await open(archive);
  try {
    for (let sent = 0; sent < size; ) {
      await at(sent);
      const { bytesRead, buffer } = await file.read(Buffer.alloc(CHUNK_BYTES), 0, CHUNK_BYTES, sent);
      sent += bytesRead;
      yield { chunk: buffer.subarray(0, bytesRead) };
    }
  } finally {
    await file.close();
  }
}

async function isThere(client: AnabranchClient): Promise<boolean> {
  return client.trajectories.getTrajectory({ trajectoryId: ID }).then(
    () => true,
    () => false,
  );
}

it.each(ENGINES)(
  'V6, D1: an import that kill -9 ends again and again on %s is repeated, and is whole at the end',
  async (engine) => {
    await using database = await createMigratedDatabase(engine);
    let kills = 0;
    for (const share of dose([0.7], [0.3, 0.6, 0.9])) {
      const server = await spawnServer({ database: database.url });
      const client = connectClient({ address: server.url });
      const killed = client.admin.importArchive(
        chunks(async (sent) => {
          if (sent < share * size) return;
          kills += 1;
          await server.kill();
        }),
      );
      await expect(killed).rejects.toThrow();
      client.close();
      const store = await openOn(database);
      await expectVerified(store);
      expect(await store.getTrajectory('default', ID)).toBeUndefined();
      await store.close();
    }
    await using server = await startTestServer({ database });
    const client = connectClient({ address: server.url });
    const { trajectories, steps } = await client.admin.importArchive(chunks(async () => {}));
    expect([trajectories, steps]).toEqual([1n, BigInt(STEPS)]);
    client.close();
    await server.stop();
    expect(await verifiedLinesIn(database)).toEqual(lines);
    reportFigures(`imports that kill -9 ends, on ${engine}`, { kills, 'half imported trajectories': 0, lost: 0 });
  },
);

async function fillUp(disk: SmallDisk): Promise<void> {
  const hog = await open(path.join(disk.dir, 'hog'), 'w');
  for (let written = 1; written > 0; ) {
    written = await hog.write(randomBytes(64 * 1024)).then(
      ({ bytesWritten }) => bytesWritten,
      () => 0,
    );
  }
  await hog.close();
}

it.each(ENGINES)('V6, D4: a full disk ends an import on %s with an error, and the server serves on', async (engine) => {
  await using disk = await mountSmallDisk(60, 1);
  await using database = await databaseOn(disk, engine);
  await using server = await startTestServer({ database });
  const client = connectClient({ address: server.url });
  const hog = path.join(disk.dir, 'hog');
  // Half of the archive fits.
  await writeFile(hog, Buffer.alloc((await disk.free()) - (size >> 1)));
  const error: unknown = await client.admin.importArchive(chunks(async () => {})).catch((caught: unknown) => caught);
  expect(reasonOf(error)).toBe('STORAGE_FULL');
  expect(await isThere(client)).toBe(false);
  await requireIntact(client);
  await rm(hog);
  if (engine === 'postgres') {
    expect(await client.admin.importArchive(chunks(async () => {}))).toMatchObject({ trajectories: 1n });
    await requireIntact(client);
  }
  client.close();
  reportFigures(`imports on a full disk, on ${engine}`, {
    'refused with an error': 1,
    'half imported': 0,
    lost: 0,
  });
});

it('V5, D4: a full disk ends an export with an error, and leaves no file', async () => {
  await using disk = await mountSmallDisk(10, 1);
  await using server = await startTestServer();
  expect((await runCli(['import', archive, '--address', server.url])).code).toBe(0);
  await fillUp(disk);
  const out = await runCli(['export', path.join(disk.dir, 'copy.tar.zst'), '--address', server.url]);
  expect([out.code, out.stderr]).toEqual([1, expect.stringMatching(/cannot be created: .*no space/i)]);
  expect((await readdir(disk.dir)).filter((name) => /copy|part/.test(name))).toEqual([]);
  reportFigures('exports to a full disk', { 'refused with an error': 1, 'files left over': 0 });
});

it.each(ENGINES)(
  'V5, D4: a full disk of temporary files ends an export on %s with an error, and it succeeds when there is room',
  async (engine) => {
    await using disk = await mountSmallDisk(16, 1);
    await using database = await createMigratedDatabase(engine);
    await using server = await spawnServer({ database: database.url, env: { SQLITE_TMPDIR: disk.dir } });
    const client = connectClient({ address: server.url });
    // More than the records of runs that stay in memory.
    for (let i = 0; i < 60; i += 1) {
      await client.runs.createRun({ configJson: JSON.stringify({ key: randomBytes(45_000).toString('hex') }) });
    }
    await fillUp(disk);
    const whole = path.join(folder, `runs-${engine}.tar.zst`);
    const failed = await runCli(['export', whole, '--address', server.url]);
    expect([failed.code, failed.stderr]).toEqual([
      1,
      expect.stringContaining("The disk with the server's temporary files is full"),
    ]);
    expect((await readdir(folder)).filter((name) => name.includes(`runs-${engine}`))).toEqual([]);
    await requireIntact(client);
    await rm(path.join(disk.dir, 'hog'));
    expect((await runCli(['export', whole, '--address', server.url])).code).toBe(0);
    client.close();
    reportFigures(`exports with a full disk of temporary files, on ${engine}`, {
      'refused with an error': 1,
      'files left over': 0,
    });
  },
);
