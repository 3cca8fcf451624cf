import { randomUUID } from 'node:crypto';
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type AnabranchClient, connectClient, openWriter, reasonOf } from '../../src/client/index.ts';
import { openStore } from '../../src/store/open.ts';
import { logger } from '../store/on_store.ts';
import { sqlitePath } from '../store/sql.ts';
import { expectVerified } from '../store/verified.ts';
import { ON_POSTGRES } from '../support/database.ts';
import { sha256 } from '../support/steps.ts';
import { startTestServer } from '../support/test-server.ts';

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-backup-'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

async function download(client: AnabranchClient): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  let digest = '';
  for await (const piece of client.admin.backupDatabase({})) {
    chunks.push(piece.chunk);
    digest = piece.digest;
  }
  const bytes = Buffer.concat(chunks);
  expect(digest).toBe(sha256(bytes));
  return bytes;
}

it('V2: a backup beside a writer is intact, and has every step that was acked before it began', async () => {
  await using server = await startTestServer();
  const client = connectClient({ address: server.url });
  const trajectoryId = randomUUID();
  const writer = await openWriter(client, { trajectoryId, create: { trajectory: {} } });
  for (let i = 0; i < 60; i += 1) await writer.append({ reward: i, states: { env: Buffer.alloc(9000, i) } });
  let [done, acked] = [false, 60n];
  const writing = (async () => {
    for (; !done; acked += 1n) await writer.append({ states: { env: Buffer.alloc(9000, Number(acked)) } });
  })();
  for (let round = 0; round < 2; round += 1) {
    const before = acked;
    const file = path.join(folder, `${round}.db`);
    await writeFile(file, await download(client));
    const restored = await openStore({ engine: 'sqlite', path: file }, { logger });
    await expectVerified(restored);
    const found = await restored.getTrajectory('default', trajectoryId);
    expect(found!.nextStepNumber).toBeGreaterThanOrEqual(before);
    await restored.close();
  }
  done = true;
  await writing;
  await writer.close();
  expect(await copiesOf(sqlitePath(server.database))).toEqual([]);
  client.close();
});

it('V2: the copy on the server is removed when the caller leaves, and when the next server starts', async () => {
  await using server = await startTestServer();
  const file = sqlitePath(server.database);
  const client = connectClient({ address: server.url });
  for await (const piece of client.admin.backupDatabase({})) {
    expect(piece.totalBytes).toBeGreaterThan(0n);
    break;
  }
  await expect.poll(() => copiesOf(file)).toEqual([]);
  client.close();
  await server.drain();
  await writeFile(`${file}.backup-${randomUUID()}`, 'of a killed server');
  const next = await startTestServer({ database: server.database });
  expect(await copiesOf(file)).toEqual([]);
  await next.stop();
});

it.runIf(ON_POSTGRES)('V2: on Postgres the call is refused, and names what to use', async () => {
  await using server = await startTestServer({ engine: 'postgres' });
  const client = connectClient({ address: server.url });
  const error = await download(client).catch((refusal: unknown) => refusal);
  expect(reasonOf(error)).toBe('SQLITE_ONLY');
  expect(String(error)).toContain('pg_dump');
  client.close();
});

async function copiesOf(file: string): Promise<string[]> {
  const names = await readdir(path.dirname(file));
  return names.filter((name) => name.startsWith(`${path.basename(file)}.backup-`));
}
