/** The previous release and this program on one database: an upgrade while both serve, and the way back. */
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { readFile, rm, symlink } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { pathToFileURL } from 'node:url';
import { afterAll, describe, expect, it } from 'vitest';
import { run } from '../languages/run.ts';
import { openOn } from '../store/on_store.ts';
import { expectVerified } from '../store/verified.ts';
import { createDatabase, ENGINES, type TestDatabase } from '../support/database.ts';
import { spawnServer } from '../support/spawned-server.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
const FILE = '.ci/previous-release';
const COMMIT = readFileSync(path.join(ROOT, FILE), 'utf8').trim();
const PREVIOUS = path.join(os.tmpdir(), `anabranch-previous-${process.pid}`);

let checkedOut: Promise<void> | undefined;
afterAll(async () => {
  if (checkedOut === undefined) return;
  await rm(PREVIOUS, { recursive: true, force: true });
  await run('git', ['worktree', 'prune'], { cwd: ROOT });
});

/** The previous release with its own dependencies. */
async function checkOut(): Promise<void> {
  await run('git', ['worktree', 'add', '--detach', PREVIOUS, COMMIT], { cwd: ROOT });
  const locks = [PREVIOUS, ROOT].map((root) => readFile(path.join(root, 'package-lock.json'), 'utf8'));
  const [theirs, ours] = await Promise.all(locks);
  if (theirs === ours) await symlink(path.join(ROOT, 'node_modules'), path.join(PREVIOUS, 'node_modules'));
  else await run('npm', ['ci', '--prefer-offline'], { cwd: PREVIOUS, minutes: 10 });
}

type ClientModule = typeof import('../../src/client/index.ts');

/** A server of one checkout with a client of the same. */
async function serve(root: string, database: TestDatabase, args: readonly string[] = []) {
  const server = await spawnServer({ program: path.join(root, 'src/main.ts'), database: database.url, args });
  const url = pathToFileURL(path.join(root, 'src/client/index.ts')).href;
  const { connectClient, openWriter, readSteps } = (await import(url)) as ClientModule;
  const client = connectClient({ address: server.url }, {});
  return {
    async append(trajectoryId: string, text: string): Promise<void> {
      await using writer = await openWriter(client, { trajectoryId, create: { trajectory: { name: 'kept' } } });
      await writer.append({ actions: [{ type: 'say', content: { text } }] });
    },
    async read(trajectoryId: string): Promise<(string | undefined)[]> {
      const texts = [];
      for await (const { step } of readSteps(client, { trajectoryId })) texts.push(step.actions[0]?.content?.text);
      return texts;
    },
    /** Whether the server says that it is ready. */
    async isReady(): Promise<boolean> {
      return (await fetch(`${server.url}/readyz`)).ok;
    },
    async stop(): Promise<void> {
      client.close();
      await server.terminate();
    },
  };
}

describe.each(ENGINES)('the previous release and this one, on %s', (engine) => {
  it('D3: serve one database, and neither an upgrade nor the way back loses a step', async ({ skip }) => {
    skip(COMMIT === '', `nothing is released: ${FILE} names no commit`);
    checkedOut ??= checkOut();
    await checkedOut;
    await using database = await createDatabase(engine);
    const id = randomUUID();
    const texts: string[] = [];
    const append = async (server: Awaited<ReturnType<typeof serve>>, text: string) => {
      await server.append(id, text);
      texts.push(text);
      expect(await server.read(id)).toEqual(texts);
    };
    const before = await serve(PREVIOUS, database);
    await append(before, 'before the upgrade');
    // Only one process can use an SQLite file.
    if (engine === 'sqlite') await before.stop();
    await run(process.execPath, [path.join(ROOT, 'src/main.ts'), 'migrate'], { env: { DATABASE_URL: database.url } });
    const after = await serve(ROOT, database, engine === 'postgres' ? ['--no-migrate'] : []);
    await append(after, 'after the upgrade');
    if (engine === 'postgres') {
      await append(before, 'by the previous release, on the new schema');
      await expect.poll(before.isReady).toBe(true);
      await append(after, 'by this one, beside it');
      await before.stop();
    }
    await after.stop();
    const back = await serve(PREVIOUS, database);
    await append(back, 'after the way back');
    await expect.poll(back.isReady).toBe(true);
    await back.stop();
    const store = await openOn(database);
    await expectVerified(store);
    await store.close();
  });
});
