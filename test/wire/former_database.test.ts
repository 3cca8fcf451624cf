import { createHash } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { zstdDecompressSync } from 'node:zlib';
import { toJson } from '@bufbuild/protobuf';
import { expect, it } from 'vitest';
import { StepSchema, TrajectorySchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { type AnabranchClient, connectClient, readSteps } from '../../src/client/index.ts';
import { createDatabase } from '../support/database.ts';
import { startTestServer } from '../support/test-server.ts';

const FILES = path.join(import.meta.dirname, 'former');

it('design 3: a file that a version before segments wrote migrates by itself, and reads back as that version read it', async () => {
  await using database = await createDatabase('sqlite');
  const file = new DatabaseSync(database.url.replace(/^sqlite:/, ''));
  file.exec(await readFile(path.join(FILES, 'database.sql'), 'utf8'));
  file.close();
  await using server = await startTestServer({ database });
  const client = connectClient({ address: server.url });
  const expected = (await readFile(path.join(FILES, 'read.jsonl'), 'utf8')).trimEnd().split('\n');
  expect(await readAll(client)).toEqual(expected.map((line) => JSON.parse(line) as unknown));
  expect(expected.length).toBeGreaterThan(100);
  client.close();
});

it('design 3: the database of `npm run demo` of a version before segments migrates by itself, and reads back as that version read it', async () => {
  await using database = await createDatabase('sqlite');
  const file = zstdDecompressSync(await readFile(path.join(FILES, 'demo.db.zst')));
  await writeFile(database.url.replace(/^sqlite:/, ''), file);
  await using server = await startTestServer({ database });
  const client = connectClient({ address: server.url });
  const lines = await readAll(client);
  const text = lines.map((line) => `${JSON.stringify(line)}\n`).join('');
  expect(lines).toHaveLength(DEMO.lines);
  expect(createHash('sha256').update(text).digest('hex')).toBe(DEMO.digest);
  client.close();
});

/** What that version read of its database. */
const DEMO = { lines: 6472, digest: '527267a208ddc11203d6228c1314db4eaa4ef996014b7448a5ccd6a3aaa21f02' };

/** Returns all trajectories with their tags and steps, then the digests of the bytes of their states. */
async function readAll(client: AnabranchClient): Promise<unknown[]> {
  const { trajectories } = await client.trajectories.listTrajectories({ pageSize: 100 });
  const lines: unknown[] = [];
  /** By digest, the hash of the bytes that are read. */
  const states = new Map<string, string>();
  for (const each of trajectories.toSorted((a, b) => (a.id < b.id ? -1 : 1))) {
    lines.push(toJson(TrajectorySchema, each));
    const { tags } = await client.trajectories.listTags({ trajectoryId: each.id });
    lines.push(tags.map(({ name, stepNumber, updateTime }) => [name, `${stepNumber}`, `${updateTime?.seconds}`]));
    const names = new Set<string>();
    for await (const { step } of readSteps(client, { trajectoryId: each.id })) {
      lines.push(toJson(StepSchema, step));
      for (const { digest, name } of step.states) {
        names.add(name);
        if (!states.has(digest)) states.set(digest, '');
      }
    }
    for (const name of names) await hashStates(client, { trajectoryId: each.id, name }, states);
  }
  for (const [digest, hash] of states) lines.push(`${digest} ${hash}`);
  return lines;
}

async function hashStates(
  client: AnabranchClient,
  of: { readonly trajectoryId: string; readonly name: string },
  hashes: Map<string, string>,
): Promise<void> {
  let hash = createHash('sha256');
  for await (const { pieces } of client.states.readStates(of)) {
    for (const { digest, data, offset, size } of pieces) {
      hash.update(data);
      if (offset + BigInt(data.length) < size) continue;
      hashes.set(digest, hash.digest('hex'));
      hash = createHash('sha256');
    }
  }
}
