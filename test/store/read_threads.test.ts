import { copyFileSync, renameSync } from 'node:fs';
import { DatabaseSync } from 'node:sqlite';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { ReadThreadHandle, ReadThreads, type StatementJob } from '../../src/store/sqlite/read_threads.ts';
import type { TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { sqlitePath } from './sql.ts';

const ROWS = 3000;

function rows(text: string, ...parameters: unknown[]): StatementJob {
  return { kind: 'arrays', text, parameters };
}

/** Visits 27 thousand million rows, which takes hours unless it is cancelled. Each variant is a kind of its own. */
function endless(variant = 0): StatementJob {
  return rows(
    `select count(*) from numbers as a, numbers as b, numbers as c where a.key + b.key + c.key < ${-variant}`,
  );
}

const QUICK = rows('select key from numbers where key = ?', 1n);

/** One thread for jobs of any length, and one for quick jobs. */
describe('A5, A6: read threads of SQLite', () => {
  let database: TestDatabase;
  let threads: ReadThreads;
  beforeEach(async () => {
    database = await createMigratedDatabase('sqlite');
    const file = new DatabaseSync(sqlitePath(database));
    file.exec(`pragma journal_mode = wal; create table numbers (key integer primary key, word text);
      with recursive n(i) as (select 1 union all select i + 1 from n where i < ${ROWS})
      insert into numbers select i, 'word ' || i from n`);
    file.close();
    // A job that has ended once counts as quick, however slow the machine is.
    threads = new ReadThreads(sqlitePath(database), 1, { quickMs: Number.POSITIVE_INFINITY });
  });
  afterEach(async () => {
    await threads.close();
    await database.drop();
  });

  /** Starts an endless job. `ended` resolves with its rejection. */
  const begin = (job: StatementJob) => {
    const controller = new AbortController();
    const ended = threads.run(job, controller).catch((error: unknown) => error);
    return { ended, leave: (reason: unknown) => controller.abort(reason) };
  };

  it('return rows as objects with bigints, or as arrays with numbers', async () => {
    const text = 'select key, word from numbers where key <= ? order by key';
    expect(await threads.run({ kind: 'objects', text, parameters: [2n] }, undefined)).toEqual([
      { key: 1n, word: 'word 1' },
      { key: 2n, word: 'word 2' },
    ]);
    expect(await threads.run(rows(text, 2n), undefined)).toEqual([
      [1, 'word 1'],
      [2, 'word 2'],
    ]);
  });

  it('see everything committed before a job started', async () => {
    await threads.run(QUICK, undefined);
    const file = new DatabaseSync(sqlitePath(database));
    file.exec(`insert into numbers values (1000001, 'new')`);
    file.close();
    expect(await threads.run(rows('select word from numbers where key = 1000001'), undefined)).toEqual([['new']]);
  });

  it('end a statement that was cancelled, and give its thread to the next job', async () => {
    const reason = new Error('the caller has left');
    const first = begin(endless());
    first.leave(reason);
    expect(await first.ended).toBe(reason);
    // This kind is unknown, so it waits for the only thread that may run the endless statement.
    expect(await threads.run(rows('select count(*) from numbers'), undefined)).toEqual([[ROWS]]);
  });

  it('end statements over keys of any pattern, including keys whose low bits are all equal', async () => {
    const file = new DatabaseSync(sqlitePath(database));
    file.exec('create table spaced (key integer primary key); insert into spaced select key * 1024 + 1 from numbers');
    file.close();
    const reason = new Error('the caller has left');
    const first = begin(rows('select count(*) from spaced as a, spaced as b, spaced as c where a.key + b.key < c.key'));
    first.leave(reason);
    expect(await first.ended).toBe(reason);
  });

  it('do not start a job whose caller cancelled while it waited', async () => {
    const running = begin(endless());
    const waiting = begin(endless(1));
    const reason = new Error('the caller has left');
    waiting.leave(reason);
    expect(await waiting.ended).toBe(reason);
    running.leave(reason);
    await running.ended;
    expect(await threads.run(rows('select count(*) from numbers'), undefined)).toEqual([[ROWS]]);
  });

  it('refuse a job whose caller has already cancelled', async () => {
    const reason = new Error('the caller has left');
    await expect(threads.run(QUICK, { signal: AbortSignal.abort(reason) })).rejects.toBe(reason);
  });

  it('run quick jobs while all others wait behind long ones', async () => {
    await threads.run(QUICK, undefined);
    const long = Array.from({ length: 40 }, (_, variant) => begin(endless(variant)));
    for (let i = 0; i < 20; i += 1) expect(await threads.run(QUICK, undefined)).toEqual([[1]]);
    for (const { leave } of long) leave('enough');
    expect(await Promise.all(long.map(({ ended }) => ended))).toEqual(long.map(() => 'enough'));
  });

  it('reject with the error of SQLite, and stay usable', async () => {
    await expect(threads.run(rows('select * from missing'), undefined)).rejects.toThrow('no such table: missing');
    expect(await threads.run(QUICK, undefined)).toEqual([[1]]);
  });

  it('pause only between reads, and start nothing before they are resumed', async () => {
    await threads.run(QUICK, undefined);
    const long = begin(endless());
    const pausing = threads.pause();
    expect(await threads.run(QUICK, undefined)).toEqual([[1]]); // while the long job is waited for
    const waiting = threads.run(rows('select count(*) from numbers'), undefined);
    long.leave('enough');
    const resume = await pausing;
    let begun = false;
    const quick = threads.run(QUICK, undefined).then(() => {
      begun = true;
    });
    for (let i = 0; i < 100; i += 1) await new Promise((resolve) => setImmediate(resolve));
    expect(begun).toBe(false);
    resume();
    await quick;
    expect(await waiting).toEqual([[ROWS]]);
  });

  it('end all jobs when they are closed', async () => {
    const running = begin(endless());
    const waiting = begin(endless(1));
    await threads.close();
    for (const { ended } of [running, waiting]) expect(await ended).toEqual(new Error('the store is closed'));
    await expect(threads.run(QUICK, undefined)).rejects.toThrow('the store is closed');
  });

  it('restart after one of them has died, and reject the job it was running', async () => {
    const thread = new ReadThreadHandle(sqlitePath(database));
    const first = thread.run(endless()).catch((error: unknown) => error);
    const died = new Error('it died');
    await thread.stop(died);
    expect(await first).toBe(died);
    expect(await thread.run(QUICK)).toMatchObject({ value: [[1]] });
    await thread.stop(died);
  });

  it.each([false, true])('D7: do not open a file that has taken the place of theirs', async (copiesLog) => {
    const file = sqlitePath(database);
    const thread = new ReadThreadHandle(file, { copiesLog });
    copyFileSync(file, `${file}.new`);
    renameSync(`${file}.new`, file);
    await expect(thread.run(QUICK)).rejects.toThrow('the file of the database was replaced');
  });
});
