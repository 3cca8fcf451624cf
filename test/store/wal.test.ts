import { closeSync, openSync, readSync, statSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { openWriter } from '../../src/store/sqlite/connection.ts';
import { ReadThreads, type StatementJob } from '../../src/store/sqlite/read_threads.ts';
import { Wal } from '../../src/store/sqlite/wal.ts';
import { SqliteFile } from '../../src/store/sqlite_file/file.ts';
import { createDatabase } from '../support/database.ts';
import { sqlitePath } from './sql.ts';

const COMMIT_BYTES = 32 * 1024;
const LIMIT_BYTES = 1024 * 1024;

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

describe('A5: the write-ahead log of SQLite', () => {
  it('is restarted although readers overlap without end', async () => {
    await using database = await createDatabase('sqlite');
    const path = sqlitePath(database);
    const writer = openWriter(path);
    writer.exec('create table pieces (key integer primary key, data blob)');
    const threads = new ReadThreads(path, 4, Number.POSITIVE_INFINITY);
    const faults: unknown[] = [];
    const wal = new Wal({
      path,
      pauseReaders: () => threads.pause(),
      checkpoint: async () => writer.exec('pragma wal_checkpoint(passive)'),
      onFault: (error) => faults.push(error),
      limitBytes: LIMIT_BYTES,
    });
    let writing = true;
    let reads = 0;
    const reader = async () => {
      for (; writing; reads += 1) await threads.run(READ, undefined);
    };
    const readers = Array.from({ length: 6 }, reader);
    const update = writer.prepare(
      'insert into pieces values (?, randomblob(?)) on conflict do update set data = excluded.data',
    );
    // Each restart gives the log a new salt. Without restarts this loop never ends.
    const salts = new Set<string>();
    for (let i = 0; salts.size < 3; i += 1) {
      update.run(i % 64, COMMIT_BYTES);
      wal.committed();
      salts.add(saltOf(`${path}-wal`));
      await new Promise((resolve) => setImmediate(resolve));
    }
    writing = false;
    await Promise.all(readers);
    expect(faults).toEqual([]);
    expect(reads).toBeGreaterThan(3);
    await threads.close();
    writer.close();
  });

  it('V3: is copied into the file after a vacuum although readers and commits overlap without end', async () => {
    await using database = await createDatabase('sqlite');
    const path = sqlitePath(database);
    const writer = openWriter(path);
    writer.exec('create table pieces (key integer primary key, data blob)');
    const insert = writer.prepare(
      'insert into pieces values (?, randomblob(?)) on conflict do update set data = excluded.data',
    );
    for (let i = 0; i < 640; i += 1) insert.run(i, COMMIT_BYTES);
    writer.exec('pragma wal_checkpoint(truncate)');
    writer.exec('delete from pieces where key >= 64');
    const before = statSync(path).size;
    const threads = new ReadThreads(path, 4, Number.POSITIVE_INFINITY);
    const wal = new Wal({
      path,
      pauseReaders: () => threads.pause(),
      checkpoint: async () => writer.exec('pragma wal_checkpoint(passive)'),
      onFault: () => undefined,
    });
    let working = true;
    const readers = Array.from({ length: 6 }, async () => {
      while (working) await threads.run(READ, undefined);
    });
    const commits = (async () => {
      for (let i = 0; working; i += 1) {
        insert.run(i % 64, COMMIT_BYTES);
        await new Promise((resolve) => setImmediate(resolve));
      }
    })();
    await threads.run(READ, undefined);
    for await (const _ of new SqliteFile(path, () => wal.empty()).vacuum(new AbortController().signal, 0));
    expect(statSync(path).size).toBeLessThan(before / 2);
    working = false;
    await Promise.all([...readers, commits]);
    await threads.close();
    writer.close();
  });
});
