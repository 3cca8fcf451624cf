import { randomBytes } from 'node:crypto';
import { copyFile, mkdtemp, readdir, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type AnabranchClient, connectClient, openWriter, reasonOf } from '../../src/client/index.ts';
import { runCli } from '../cli/run_cli.ts';
import { dose } from '../support/dose.ts';
import { requireIntact } from '../support/intact.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { spawnServer } from '../support/spawned-server.ts';
import { startTestServer } from '../support/test-server.ts';
import { databaseOn } from './disk/databases.ts';
import { mountSmallDisk } from './disk/small-disk.ts';
import { reportFigures } from './figures.ts';

const ID = '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c5b6a';

/** MiB of a database of which a backup is killed. */
const BACKED_UP = dose(8, 24);

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-backups-'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

/** Stores this many MiB that do not compress. */
async function fill(client: AnabranchClient, mib: number): Promise<void> {
  const writer = await openWriter(client, { trajectoryId: ID, create: { trajectory: {} } });
  for (let i = 0; i < 4 * mib; i += 1) await writer.append({ states: { env: randomBytes(256 * 1024) } });
  await writer.close();
}

it('V2, D4: a full disk ends a backup or a restore with an error, leaves nothing behind, and the server serves on', async () => {
  await using disk = await mountSmallDisk(50, 1);
  await using database = await databaseOn(disk, 'sqlite');
  await using server = await startTestServer({ database });
  const client = connectClient({ address: server.url });
  await fill(client, 24);
  const backup = async () => {
    for await (const _ of client.admin.backupDatabase({}));
  };
  expect(reasonOf(await backup().catch((error: unknown) => error))).toBe('STORAGE_FULL');
  const names = async () => (await readdir(disk.dir)).filter((name) => /backup|part/.test(name));
  expect(await names()).toEqual([]);
  await requireIntact(client);
  client.close();

  await using whole = await startTestServer();
  const writing = connectClient({ address: whole.url });
  await fill(writing, 30);
  writing.close();
  const onSmall = await runCli(['backup', path.join(disk.dir, 'copy.db'), '--address', whole.url]);
  expect([onSmall.code, onSmall.stderr]).toEqual([1, expect.stringMatching(/cannot be created: .*no space/i)]);
  const file = path.join(folder, 'whole.db');
  // The server can still be removing the copy of the refused backup.
  const again = () => runCli(['backup', file, '--address', whole.url]);
  let second = await again();
  while (second.code !== 0 && /one copy at a time/.test(second.stderr)) second = await again();
  expect([second.code, second.stderr]).toEqual([0, expect.anything()]);
  await whole.stop();
  const restored = await runCli(['restore', file, '--database', `sqlite:${path.join(disk.dir, 'restored.db')}`]);
  expect([restored.code, restored.stderr]).toEqual([1, expect.stringMatching(/cannot be created: .*no space/i)]);
  expect((await readdir(disk.dir)).filter((name) => /copy|restored|part/.test(name))).toEqual([]);
  reportFigures('backups and restores on a full disk', {
    'refused with an error': 3,
    'files left over': 0,
    lost: 0,
  });
});

it('V9, D4: a full disk ends a table with an error, and leaves no file', async () => {
  await using disk = await mountSmallDisk(4, 1);
  await using server = await startTestServer();
  const client = connectClient({ address: server.url });
  const writer = await openWriter(client, { trajectoryId: ID, create: { trajectory: {} } });
  for (let i = 0; i < 32; i += 1) {
    const text = randomBytes(128 * 1024).toString('hex');
    await writer.append({ observations: [{ content: { text } }] });
  }
  await writer.close();
  for (const ending of ['jsonl', 'parquet', 'sqlite']) {
    const file = path.join(disk.dir, `steps.${ending}`);
    const { code, stderr } = await runCli(['table', ID, '-o', file, '--address', server.url]);
    expect([code, stderr]).toEqual([1, expect.stringMatching(/no space|full/i)]);
  }
  expect((await readdir(disk.dir)).filter((name) => name.startsWith('steps'))).toEqual([]);
  await requireIntact(client);
  client.close();
  reportFigures('tables on a full disk', { 'refused with an error': 3, 'files left over': 0, lost: 0 });
});

it('V2, D1: kill -9 during a backup leaves no copy for longer than to the next start, and loses nothing', async () => {
  await using database = await createMigratedDatabase('sqlite');
  const server = await spawnServer({ database: database.url });
  const client = connectClient({ address: server.url });
  await fill(client, BACKED_UP);
  const failed = (async () => {
    for await (const { copiedBytes } of client.admin.backupDatabase({})) if (copiedBytes >= 0n) await server.kill();
  })();
  await expect(failed).rejects.toThrow();
  client.close();
  const file = database.url.replace(/^sqlite:/, '');
  const copies = async () => (await readdir(path.dirname(file))).filter((name) => name.includes('.backup-'));
  // In case the kill came after the copy was complete.
  await copyFile(file, `${file}.backup-${ID}`);
  await using next = await spawnServer({ database: database.url });
  expect(await copies()).toEqual([]);
  const again = connectClient({ address: next.url });
  await requireIntact(again);
  expect((await again.trajectories.getTrajectory({ trajectoryId: ID })).trajectory?.nextStepNumber).toBe(
    BigInt(4 * BACKED_UP),
  );
  reportFigures('kill -9 during a backup', {
    kills: 1,
    'acked steps checked': 4 * BACKED_UP,
    'files left over': 0,
    lost: 0,
  });
  again.close();
});
