import { hash, randomBytes, randomUUID } from 'node:crypto';
import { constants, zstdCompressSync } from 'node:zlib';
import { Code, ConnectError } from '@connectrpc/connect';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { writeHeader } from '../../src/archive/entries.ts';
import { type AnabranchClient, connectClient, reasonOf } from '../../src/client/index.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';

const ID = '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c5b6a';
const MIB = 1024 * 1024;
const FIRST =
  '{"record":"archive","format":"anabranch-archive","version":3,"namespace":"default","scope":"namespace"}\n';

function entry(name: string, content: Uint8Array | string): Buffer {
  const bytes = Buffer.from(content as string);
  const named = name.replace('DIGEST', hash('sha256', bytes, 'hex'));
  const padding = Buffer.alloc((512 - (bytes.length % 512)) % 512);
  return Buffer.concat([writeHeader({ name: named, size: bytes.length }), bytes, padding]);
}

function records(text: string): Buffer {
  return entry('records/00000001.DIGEST.jsonl', text);
}

function packed(...entries: readonly Buffer[]): Buffer {
  const params = { [constants.ZSTD_c_windowLog]: 21 };
  return zstdCompressSync(Buffer.concat([...entries, Buffer.alloc(1024)]), { params });
}

/** Steps that have only their number, and a commit time. */
function tinySteps(count: number): Buffer {
  const step = Buffer.from([0x52, 0x02, 0x08, 0x01]);
  return Buffer.concat(Array.from({ length: count }, () => Buffer.from([step.length, ...step])));
}

function nested(depth: number): string {
  return '['.repeat(depth) + ']'.repeat(depth);
}

const BOMBS: Readonly<Record<string, () => Buffer>> = {
  'a line of nested lists': () => packed(records(FIRST), records('['.repeat(4 * MIB) + ']'.repeat(4 * MIB))),
  'a line of nested lists before the first record': () => packed(records('['.repeat(4 * MIB))),
  'a nested version': () => packed(records(FIRST.replace(':3,', `:${nested(60_000)},`))),
  'a nested scope': () => packed(records(FIRST.replace('"namespace"}', `${nested(60_000)}}`))),
  'an entry of 64 MiB': () => packed(records('['.repeat(64 * MIB))),
  'a line of empty objects': () => packed(records(FIRST), records(`{"record":"end","a":[${'{},'.repeat(MIB)}{}]}`)),
  'a line of keys': () => packed(records(FIRST), records(`{"record":"end"${',"a":0'.repeat(MIB)}}`)),
  'newlines alone': () => packed(records(FIRST), records('\n'.repeat(8 * MIB))),
  'empty records': () => packed(records(FIRST), records('{}\n'.repeat(2 * MIB))),
  'an empty entry': () => packed(records(FIRST), records('')),
  'many tiny steps': () => packed(records(FIRST), entry(`steps/${ID}/0.DIGEST.binpb`, tinySteps(500_000))),
  'many tiny small states': () => packed(records(FIRST), entry('small_states/DIGEST.binpb', Buffer.alloc(4 * MIB))),
  'zeros after the end': () => packed(records(FIRST), records('{"record":"end"}\n'), Buffer.alloc(64 * MIB)),
  'other bytes after the end': () =>
    packed(records(FIRST), records('{"record":"end"}\n'), Buffer.alloc(1024), records(FIRST)),
};

async function* chunksOf(bytes: Uint8Array): AsyncGenerator<{ chunk: Uint8Array }> {
  for (let at = 0; at < bytes.length; at += 256 * 1024) yield { chunk: bytes.subarray(at, at + 256 * 1024) };
}

describe('the bounds of an import', () => {
  let server: TestServer;
  let client: AnabranchClient;
  beforeAll(async () => {
    server = await startTestServer();
    client = connectClient({ address: server.url });
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });

  it.each(Object.keys(BOMBS))('V6: %s is refused', async (name) => {
    const bytes = BOMBS[name]!();
    expect(bytes.length).toBeLessThan(MIB);
    const error: unknown = await client.admin.importArchive(chunksOf(bytes)).catch((caught: unknown) => caught);
    expect([reasonOf(error), (error as Error).message]).toEqual([
      'ARCHIVE_INVALID',
      expect.stringContaining('archive is damaged'),
    ]);
  });

  it('V6: two imports run at once, and the next one waits for its turn, unless its deadline passes', async () => {
    const names = ['one', 'two', 'three', 'four'].map((name) => `${name} ${randomUUID()}`);
    const ends = names.map(() => Promise.withResolvers<void>());
    async function* archive(i: number): AsyncGenerator<{ chunk: Uint8Array }> {
      const state = randomBytes(512 * 1024);
      const digest = hash('sha256', state, 'hex');
      const whole = packed(
        ...[records(FIRST + experiment(names[i]!)), entry(`states/${digest}`, state), records('{"record":"end"}\n')],
      );
      // The state fills blocks of zstd, so that what comes before it is decompressed.
      yield* chunksOf(whole.subarray(0, -10));
      await ends[i]!.promise;
      yield { chunk: whole.subarray(-10) };
    }
    const stored = async () => (await client.runs.listExperiments({})).experiments.map(({ name }) => name);
    const [one, two] = [0, 1].map((i) => client.admin.importArchive(archive(i)));
    await expect.poll(stored, { timeout: 30_000 }).toEqual(expect.arrayContaining(names.slice(0, 2)));
    ends[2]!.resolve();
    ends[3]!.resolve();
    const late: unknown = await client.admin
      .importArchive(archive(2), { timeoutMs: 300 })
      .catch((caught: unknown) => caught);
    expect(ConnectError.from(late).code).toBe(Code.DeadlineExceeded);
    const next = client.admin.importArchive(archive(3));
    ends[0]!.resolve();
    await Promise.all([one, next]);
    ends[1]!.resolve();
    await two;
    const there = await stored();
    expect(names.map((name) => there.includes(name))).toEqual([true, true, false, true]);
  });
});

function experiment(name: string): string {
  const texts = Object.fromEntries(
    [
      ...['description', 'environment_name', 'environment_config_json', 'agent_type', 'agent_config_json'],
      ...['default_config_json', 'metadata_json'],
    ].map((column) => [column, '']),
  );
  const [time, id] = ['2026-01-01T00:00:00.000000Z', randomUUID()];
  const rest = { max_steps: null, seed: null, tags: '[]', last_run_number: '0', create_time: time, update_time: time };
  return `${JSON.stringify({ record: 'experiment', id, name, ...texts, ...rest })}\n`;
}
