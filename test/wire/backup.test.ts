import { randomBytes, randomUUID } from 'node:crypto';
import { mkdtemp, readdir, readlink, rm, writeFile } from 'node:fs/promises';
import { constants, type OutgoingHttpHeaders } from 'node:http2';
import os from 'node:os';
import path from 'node:path';
import { Code, type ConnectError } from '@connectrpc/connect';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { RetryInfoSchema } from '../../gen/es/google/rpc/error_details_pb.js';
import { type AnabranchClient, connectClient, openWriter, reasonOf } from '../../src/client/index.ts';
import { openStore } from '../../src/store/open.ts';
import { logger } from '../store/on_store.ts';
import { sqlitePath } from '../store/sql.ts';
import { expectVerified } from '../store/verified.ts';
import { ON_POSTGRES } from '../support/database.ts';
import { sha256 } from '../support/steps.ts';
import { startTestServer, type TestServerOptions } from '../support/test-server.ts';
import { http2Session, inEnvelope, RawCall } from './raw.ts';

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

describe('V2: of several callers', () => {
  const RPC = '/anabranch.v1.AdminService/BackupDatabase';
  const WAYS = ['application/grpc', 'application/grpc-web+proto', 'application/connect+proto'];

  /** A server with a database that fills many windows. */
  async function serve(settings: TestServerOptions['settings'] = {}) {
    const server = await startTestServer({ settings });
    const client = connectClient({ address: server.url });
    await client.trajectories.createTrajectory({
      root: { states: [1, 2, 3, 4].map((i) => ({ name: `s${i}`, data: randomBytes(200_000) })) },
    });
    const session = await http2Session(server.url, { settings: { initialWindowSize: 0 } });
    /** A caller that reads nothing. */
    const call = (type: string, headers: OutgoingHttpHeaders = {}) => {
      const made = new RawCall(session, RPC, { 'content-type': type, ...headers });
      made.stream.end(inEnvelope(new Uint8Array()));
      return made;
    };
    return {
      server,
      client,
      copies: () => copiesHeld(sqlitePath(server.database)),
      call,
      /** A caller that reads nothing, once the server waits for it with a complete copy. */
      async stalled(type: string): Promise<RawCall> {
        const made = call(type);
        await expect.poll(() => copiesHeld(sqlitePath(server.database))).toMatchObject({ named: 0, unnamed: 1 });
        return made;
      },
      async [Symbol.asyncDispose]() {
        session.destroy();
        client.close();
        await server.stop();
      },
    };
  }

  it('one has a copy, and the others are refused with the time after which to call again', async () => {
    await using scene = await serve();
    const { client } = scene;
    const first = await scene.stalled('application/grpc');
    const refusals = await Promise.all(
      Array.from({ length: 20 }, () => download(client).catch((error: unknown) => error)),
    );
    for (const refusal of refusals) {
      expect(reasonOf(refusal)).toBe('BACKUP_IN_PROGRESS');
      expect((refusal as ConnectError).code).toBe(Code.ResourceExhausted);
      expect((refusal as ConnectError).findDetails(RetryInfoSchema)[0]?.retryDelay?.seconds).toBeGreaterThan(0n);
    }
    expect(await scene.copies()).toEqual({ named: 0, unnamed: 1 });
    first.stream.close();
    await expect.poll(scene.copies).toEqual(NONE);
    await nextIsServed(client);
    await nextIsServed(client);
  });

  it.each(WAYS)('by %s, one that stops reading is cut off, and its copy goes', async (type) => {
    await using scene = await serve({ slowReaderMs: 300 });
    const slow = scene.call(type);
    expect((await slow.outcome).reset).toBe(constants.NGHTTP2_ENHANCE_YOUR_CALM);
    await expect.poll(scene.copies).toEqual(NONE);
    await nextIsServed(scene.client);
  });

  it.each(WAYS)('by %s, one that disconnects or whose deadline passes gives up its copy', async (type) => {
    await using scene = await serve();
    const gone = await scene.stalled(type);
    gone.stream.close(constants.NGHTTP2_CANCEL);
    await expect.poll(scene.copies).toEqual(NONE);
    const timeout = type.includes('connect') ? { 'connect-timeout-ms': '1500' } : { 'grpc-timeout': '1500m' };
    scene.call(type, timeout);
    // On a busy machine the deadline can pass before the copy is seen.
    for (const end = performance.now() + 1500; performance.now() < end && (await scene.copies()).unnamed === 0; );
    await expect.poll(scene.copies).toEqual(NONE);
    await nextIsServed(scene.client);
  });

  it('one that leaves while the copy is made leaves no copy', async () => {
    await using scene = await serve();
    const leaving = new AbortController();
    const pieces = scene.client.admin.backupDatabase({}, { signal: leaving.signal });
    const left = (async () => {
      for await (const { chunk } of pieces) {
        expect(chunk).toHaveLength(0);
        leaving.abort();
      }
    })();
    await expect(left).rejects.toMatchObject({ code: Code.Canceled });
    await expect.poll(scene.copies).toEqual(NONE);
    await nextIsServed(scene.client);
  });
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

/** The server notices after its client that a caller has left. */
async function nextIsServed(client: AnabranchClient): Promise<void> {
  const outcome = () =>
    download(client).then(
      () => 'served',
      (refusal: unknown) => reasonOf(refusal),
    );
  await expect.poll(outcome).toBe('served');
}

const NONE = { named: 0, unnamed: 0 };

/** Copies that this process, with the servers in it, has of a database: with a name, and without one any more. */
async function copiesHeld(file: string): Promise<typeof NONE> {
  const descriptors = await readdir('/dev/fd');
  const targets = await Promise.all(descriptors.map((each) => readlink(`/dev/fd/${each}`).catch(() => '')));
  const unnamed = targets.filter((target) => target.startsWith(`${file}.backup-`) && target.endsWith(' (deleted)'));
  return { named: (await copiesOf(file)).length, unnamed: unnamed.length };
}
