import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { DatabaseSync } from 'node:sqlite';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { openStore } from '../../src/store/open.ts';
import { createDatabase, type TestDatabase } from '../support/database.ts';
import { logger, openOn, refusedOpen } from './on_store.ts';
import { newTrajectory, Scene } from './scene.ts';
import { sqlitePath } from './sql.ts';

describe('opening a store, on sqlite', () => {
  const holders: ChildProcess[] = [];
  afterEach(async () => {
    vi.restoreAllMocks();
    for (const holder of holders.splice(0)) {
      if (holder.exitCode !== null || holder.signalCode !== null) continue;
      holder.kill('SIGKILL');
      await once(holder, 'exit');
    }
  });

  /** Starts another process that opens a store on the file. Resolves with its first line: `open`, or the error. */
  async function anotherProcess(file: string): Promise<{ said: string; child: ChildProcess }> {
    const entry = JSON.stringify(path.resolve(import.meta.dirname, '../../src/store/open.ts'));
    const program = `import { openStore } from ${entry};
      const logger = { warn() {}, error() {} };
      try {
        await openStore({ engine: 'sqlite', path: ${JSON.stringify(file)} }, { logger });
        console.log('open');
        setInterval(() => {}, 1000);
      } catch (error) { console.log(error.message); }`;
    const child = spawn(process.execPath, ['--input-type=module', '-e', program], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    holders.push(child);
    const [said] = (await once(child.stdout as NodeJS.ReadableStream, 'data')) as [Buffer];
    return { said: said.toString().trim(), child };
  }

  it('design 6: a second process is refused with the name of the first; a killed process releases the file', async () => {
    await using database = await createDatabase('sqlite');
    const file = sqlitePath(database);
    const first = await anotherProcess(file);
    expect(first.said).toBe('open');

    const error = await refusedOpen(openOn(database));
    expect(error.message).toContain(file);
    expect(error.message).toContain(`${first.child.pid}`);
    const third = await anotherProcess(file);
    expect(third.said).toContain(`${first.child.pid}`);

    first.child.kill('SIGKILL');
    await once(first.child, 'exit');
    const store = await openOn(database);
    await new Scene(store).createWith(['a']);
    const refused = await anotherProcess(file);
    expect(refused.said).toContain(`${process.pid}`);
    await store.close();
    expect((await anotherProcess(file)).said).toBe('open');
  });

  it('design 6: a second store of the same process is refused too, and the first keeps working', async () => {
    await using database = await createDatabase('sqlite');
    const store = await openOn(database);
    const error = await refusedOpen(openOn(database));
    expect(error.message).toContain(`${process.pid}`);
    await new Scene(store).createWith(['a']);
    await store.close();
  });

  it('design 6: the same file under another name is recognised as the same file', async () => {
    await using database = await createDatabase('sqlite');
    const file = sqlitePath(database);
    const store = await openOn(database);
    const link = path.join(path.dirname(file), 'link.db');
    symlinkSync(file, link);
    const error = await refusedOpen(openStore({ engine: 'sqlite', path: link }, { logger }));
    expect(error.message).toContain(`${process.pid}`);
    await store.close();
  });

  it('design 6: others can read the file while a store has it open', async () => {
    await using database = await createDatabase('sqlite');
    const store = await openOn(database);
    const scene = new Scene(store);
    const made = await scene.createWith(['a']);
    const reader = new DatabaseSync(sqlitePath(database), { readOnly: true });
    expect(reader.prepare('select id, next_step_number as n from trajectories').get()).toMatchObject({
      id: made.id,
      n: 1,
    });
    // A reader in the middle of its work does not block the writer.
    reader.exec('begin');
    reader.prepare('select count(*) from steps').get();
    await scene.appendWords(made, ['b']);
    reader.exec('commit');
    expect(reader.prepare('select count(*) as n from steps').get()).toMatchObject({ n: 2 });
    reader.close();
    await store.close();
  });

  it('creates the folder of the file', async () => {
    const folder = mkdtempSync(path.join(tmpdir(), 'anabranch-open-'));
    try {
      const file = path.join(folder, 'not', 'yet here', 'dätä.db');
      const store = await openStore({ engine: 'sqlite', path: file }, { logger });
      await store.createTrajectory({ namespace: 'n', actor: 'a' }, newTrajectory());
      await store.close();
      expect(existsSync(file)).toBe(true);
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  });

  it('a file that is no database is refused, named in the error, and left as it was', async () => {
    await using database = await createDatabase('sqlite');
    const file = sqlitePath(database);
    const { readFileSync, writeFileSync } = await import('node:fs');
    const text = 'this is a letter, not a database\n'.repeat(200);
    writeFileSync(file, text);
    const error = await refusedOpen(openOn(database));
    expect(error.message).toContain(file);
    expect(readFileSync(file, 'utf8')).toBe(text);
  });

  it('D1: the writing connection uses WAL and synchronous = FULL, on the first open and on every later one', async () => {
    await using database = await createDatabase('sqlite');
    const seen = new Set<DatabaseSync>();
    const prepare = DatabaseSync.prototype.prepare;
    vi.spyOn(DatabaseSync.prototype, 'prepare').mockImplementation(function (this: DatabaseSync, ...rest) {
      seen.add(this);
      return prepare.apply(this, rest);
    });
    for (let open = 0; open < 3; open += 1) {
      seen.clear();
      const store = await openOn(database);
      const scene = new Scene(store);
      await scene.createWith(['a']);
      const writers = [...seen].filter(
        (each) => each.isOpen && each.location() === sqlitePath(database) && canWrite(each),
      );
      expect(writers.length).toBeGreaterThan(0);
      for (const writer of writers) {
        expect(prepare.call(writer, 'pragma synchronous').get()).toMatchObject({ synchronous: 2 });
        expect(prepare.call(writer, 'pragma journal_mode').get()).toMatchObject({ journal_mode: 'wal' });
        expect(prepare.call(writer, 'pragma cache_size').get()).toMatchObject({ cache_size: -64 * 1024 });
      }
      await store.close();
    }
  });

  function canWrite(database: DatabaseSync): boolean {
    try {
      database.exec('begin; update sqlite_sequence set seq = seq; rollback');
      return true;
    } catch {
      return false;
    }
  }
});

describe('the file of a killed process, on sqlite', () => {
  it('D1: every acked step is stored after SIGKILL during appends', async () => {
    await using database = await createDatabase('sqlite');
    const acked = await appendUntilKilled(database);
    const store = await openOn(database);
    const scene = new Scene(store, 'killed');
    const [made] = await store.listTrajectories('killed', {}, { limit: 1, after: undefined });
    const words = await scene.words(made as NonNullable<typeof made>);
    expect(words.length).toBeGreaterThanOrEqual(acked);
    expect(words).toEqual(words.map((_, i) => `${i}`));
    await store.close();
  });

  /**
   * Starts a process that appends and prints each ack, and kills it during an append. Returns how many acks it printed.
   */
  async function appendUntilKilled(database: TestDatabase): Promise<number> {
    const at = (file: string) => JSON.stringify(path.resolve(import.meta.dirname, file));
    const program = `import { openStore } from ${at('../../src/store/open.ts')};
      import { Scene } from ${at('scene.ts')};
      import { wordStep } from ${at('../support/steps.ts')};
      const store = await openStore({ engine: 'sqlite', path: ${JSON.stringify(sqlitePath(database))} }, { logger: { warn() {}, error() {} } });
      const scene = new Scene(store, 'killed');
      const made = await scene.create();
      for (let n = 0n; ; n += 1n) {
        await scene.append(made, [wordStep(n, String(n))]);
        process.stdout.write(n + '\\n');
        // The process notices that its output is closed, and ends.
        await new Promise(setImmediate);
      }`;
    const child = spawn(process.execPath, ['--input-type=module', '-e', program], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    let told = '';
    child.stdout.on('data', (chunk: Buffer) => {
      told += chunk.toString();
      if (told.split('\n').length > 200) child.kill('SIGKILL');
    });
    await once(child, 'close');
    return told.split('\n').length - 1;
  }
});
