import { randomBytes } from 'node:crypto';
import { closeSync, existsSync, openSync, readSync, statSync } from 'node:fs';
import { DatabaseSync } from 'node:sqlite';
import { pino } from 'pino';
import { describe, expect, it } from 'vitest';
import { Content } from '../../src/store/file_guard/watch.ts';
import { openStore } from '../../src/store/open.ts';
import { openWriter } from '../../src/store/sqlite/connection.ts';
import { COPY_LOG, ReadThreadHandle, ReadThreads, type StatementJob } from '../../src/store/sqlite/read_threads.ts';
import { Wal } from '../../src/store/sqlite/wal.ts';
import { WriteLock } from '../../src/store/sqlite/write_lock.ts';
import { SqliteFile } from '../../src/store/sqlite_file/file.ts';
import { createDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { putState, Scene } from './scene.ts';
import { sqlitePath } from './sql.ts';

const COMMIT_BYTES = 32 * 1024;
const LIMITS = { copyBytes: 256 * 1024, walBytes: 1024 * 1024 };

/** Takes much longer than a commit, so that one of several is always running. */
const READ: StatementJob = {
  kind: 'arrays',
  text: 'select count(*) from pieces as a, pieces as b, pieces as c where a.key + b.key > c.key',
  parameters: [],
};

/** In the header of the log: https://www.sqlite.org/fileformat.html#the_write_ahead_log. */
function saltOf(path: string): string {
  const file = openSync(path, 'r');
  const salt = Buffer.alloc(8);
  readSync(file, salt, 0, 8, 16);
  closeSync(file);
  return salt.toString('hex');
}

/** A file with a writing connection, readers on threads, and a `Wal`, as an open store has them. */
class Scenery implements AsyncDisposable {
  readonly path: string;
  readonly writer: DatabaseSync;
  readonly threads: ReadThreads;
  readonly content: Content;
  readonly faults: unknown[] = [];
  /** What runs instead of a copy. */
  copy = () => this.realCopy();
  pauses = 0;
  readonly #copier: ReadThreadHandle;
  readonly #lock = new WriteLock();
  readonly #file: number;
  readonly wal: Wal;

  constructor(path: string, limits = LIMITS) {
    this.path = path;
    this.writer = openWriter(path);
    this.writer.exec('pragma wal_autocheckpoint = 0; create table pieces (key integer primary key, data blob)');
    this.threads = new ReadThreads(path, 4, { quickMs: Number.POSITIVE_INFINITY });
    this.#copier = new ReadThreadHandle(path, { copiesLog: true });
    this.#file = openSync(path, 'r');
    this.content = new Content(path, this.#file);
    this.wal = new Wal({
      size: () => this.content.log(),
      copy: () => this.copy(),
      pauseReaders: () => {
        this.pauses += 1;
        return this.threads.pause();
      },
      pauseWriters: (work) => this.#lock.run(work),
      onFault: (error) => this.faults.push(error),
      limits,
    });
  }

  async realCopy(): Promise<void> {
    await this.#copier.run(COPY_LOG);
  }

  async commit(key: number): Promise<void> {
    await this.#lock.run(async () => {
      this.writer
        .prepare('insert into pieces values (?, randomblob(?)) on conflict do update set data = excluded.data')
        .run(key, COMMIT_BYTES);
    });
    this.wal.committed();
    await new Promise((resolve) => setImmediate(resolve));
  }

  /** Commits until the condition holds. */
  async commitUntil(holds: () => boolean): Promise<void> {
    for (let i = 0; !holds(); i += 1) await this.commit(i % 64);
  }

  get salt(): string {
    return saltOf(`${this.path}-wal`);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.threads.close();
    await this.wal.close();
    await this.#copier.stop(new Error('the test has ended'));
    this.writer.close();
    this.content.release();
    closeSync(this.#file);
  }
}

async function withReaders({ threads }: Scenery, work: () => Promise<void>): Promise<number> {
  let reading = true;
  let reads = 0;
  const readers = Array.from({ length: 6 }, async () => {
    for (; reading; reads += 1) await threads.run(READ, undefined);
  });
  await work();
  reading = false;
  await Promise.all(readers);
  return reads;
}

describe('A5: the write-ahead log of SQLite', () => {
  it('is restarted although readers and commits overlap without end, and looks whole meanwhile', async () => {
    await using database = await createDatabase('sqlite');
    await using scene = new Scenery(sqlitePath(database));
    const overwritten = new Set<string | undefined>();
    // Each restart gives the log a new salt. Without restarts this never ends.
    const salts = new Set<string>();
    const reads = await withReaders(scene, () =>
      scene.commitUntil(() => {
        overwritten.add(scene.content.overwritten());
        salts.add(scene.salt);
        return salts.size >= 3;
      }),
    );
    expect(scene.faults).toEqual([]);
    expect(overwritten).toEqual(new Set([undefined]));
    expect(reads).toBeGreaterThan(3);
  });

  it('is copied while it is small, without a pause of reads and commits', async () => {
    await using database = await createDatabase('sqlite');
    await using scene = new Scenery(sqlitePath(database), { ...LIMITS, walBytes: Number.POSITIVE_INFINITY });
    await scene.commitUntil(() => statSync(scene.path).size > 4 * LIMITS.copyBytes);
    expect(scene.pauses).toBe(0);
    expect(scene.faults).toEqual([]);
  });

  it('D1: is not copied when all of it is copied, because the next commit may restart it', async () => {
    await using database = await createDatabase('sqlite');
    await using scene = new Scenery(sqlitePath(database));
    await scene.commit(1);
    let copies = 0;
    scene.copy = async () => {
      copies += 1;
      await scene.realCopy();
    };
    await scene.wal.empty();
    await scene.wal.empty();
    expect(copies).toBe(1);
  });

  it('makes commits wait only for the copy of what was committed last', async () => {
    await using database = await createDatabase('sqlite');
    await using scene = new Scenery(sqlitePath(database));
    await scene.commit(0);
    const committed: string[] = [];
    const copies = ['first', 'second', 'last'];
    scene.copy = async () => {
      const name = copies.shift();
      await scene.realCopy();
      const commit = scene.commit(1).then(() => committed.push(`during the ${name} copy`));
      await (name === 'last' ? scene.realCopy() : commit);
      if (name === 'last') committed.push('last copy ended');
    };
    await scene.wal.empty();
    await scene.commit(2);
    expect(committed).toEqual([
      'during the first copy',
      'during the second copy',
      'last copy ended',
      'during the last copy',
    ]);
  });

  it('D4: is copied later if a copy fails, for which no commit waits, and the failure is reported', async () => {
    await using database = await createDatabase('sqlite');
    await using scene = new Scenery(sqlitePath(database));
    const full = new Error('the disk is full');
    scene.copy = () => Promise.reject(full);
    await scene.commitUntil(() => scene.faults.length === 3);
    expect(scene.faults).toEqual([full, full, full]);
    const before = scene.salt;
    scene.copy = () => scene.realCopy();
    await scene.commitUntil(() => scene.salt !== before);
    expect(scene.faults).toHaveLength(3);
  });

  it('grows while another program reads old rows, with few pauses of reads, and is restarted afterwards', async () => {
    await using database = await createDatabase('sqlite');
    await using scene = new Scenery(sqlitePath(database));
    await scene.commit(0);
    const reader = new DatabaseSync(scene.path, { readOnly: true });
    reader.exec('begin; select count(*) from pieces');
    const before = scene.salt;
    await scene.commitUntil(() => scene.content.log().bytes > 4 * LIMITS.walBytes);
    expect(scene.salt).toBe(before);
    expect(scene.pauses).toBeLessThanOrEqual((4 * LIMITS.walBytes) / LIMITS.copyBytes);
    reader.close();
    await scene.commitUntil(() => scene.salt !== before);
    expect(scene.faults).toEqual([]);
  });

  it('V3: is copied into the file after a vacuum although readers and commits overlap without end', async () => {
    await using database = await createDatabase('sqlite');
    await using scene = new Scenery(sqlitePath(database), { ...LIMITS, copyBytes: Number.POSITIVE_INFINITY });
    const { path, writer, wal } = scene;
    for (let i = 0; i < 640; i += 1) await scene.commit(i);
    await wal.empty();
    writer.exec('delete from pieces where key >= 64');
    const before = statSync(path).size;
    const file = new SqliteFile(path, {
      cutFreePages: async (pages) => writer.exec(`pragma incremental_vacuum(${pages})`),
      emptyWal: () => wal.empty(),
    });
    let working = true;
    const reads = withReaders(scene, () => scene.commitUntil(() => !working));
    for await (const _ of file.vacuum(new AbortController().signal, 0));
    expect(statSync(path).size).toBeLessThan(before / 2);
    working = false;
    await reads;
  });
});

describe('the write-ahead log of an open store', () => {
  it('is copied while the store is open, and completely when it is closed in the middle of a copy', async () => {
    await using database = await createMigratedDatabase('sqlite');
    const path = sqlitePath(database);
    const size = () => statSync(path).size;
    const lines: string[] = [];
    const logger = pino({ level: 'warn' }, { write: (line) => lines.push(line) });
    const store = await openStore({ engine: 'sqlite', path }, { logger });
    const scene = new Scene(store);
    const before = size();
    const digests: string[] = [];
    while (size() === before) digests.push(await putState(scene.store, scene.namespace, randomBytes(1024 * 1024)));
    await store.close();
    expect(lines).toEqual([]);
    expect(existsSync(`${path}-wal`)).toBe(false);
    const again = await openStore({ engine: 'sqlite', path }, { logger });
    expect(await again.findStates(scene.namespace, digests, false)).toHaveLength(digests.length);
    await again.close();
  });
});
