import { DatabaseSync } from 'node:sqlite';
import { AnabranchError } from '../domain/errors.ts';

/** Kinds of records of a run, in the order in which archives have them. */
export const RUN_KINDS = [
  ...['experiment', 'run', 'stage', 'environment', 'cancellation'],
  ...['main_trajectory', 'group', 'rollout'],
] as const;

export type RunKind = (typeof RUN_KINDS)[number];

export interface SpooledRecord {
  readonly key: bigint;
  /** One line, or several. */
  readonly line: string;
}

const PAGE = 100;

/** SQLite's result code for a full disk. */
const FULL = 13;

/**
 * The records of runs, which are read before trajectories and partly exported after them. They are in a temporary file
 * that no other process sees, and that is removed when it is closed.
 */
export class Spool {
  readonly #file = new DatabaseSync('', { readBigInts: true });

  constructor() {
    this.#file.exec(`pragma journal_mode = off; pragma synchronous = off;
      create table records (
        kind integer, run integer, key integer, line text not null, primary key (kind, run, key)
      ) without rowid`);
  }

  /** Adds a record, or replaces the one with this kind and key. Errors: STORAGE_FULL. */
  put(run: bigint, kind: RunKind, key: bigint, line: string): void {
    const put = this.#file.prepare('insert or replace into records (kind, run, key, line) values (?, ?, ?, ?)');
    try {
      put.run(RUN_KINDS.indexOf(kind), run, key, line);
    } catch (error) {
      if ((error as { readonly errcode?: unknown }).errcode !== FULL) throw error;
      throw new AnabranchError(
        'STORAGE_FULL',
        "The disk with the server's temporary files is full. Free some space on it, or start the server with SQLITE_TMPDIR set to a folder on another disk, then export again.",
        { cause: error },
      );
    }
  }

  /** Yields the records of a kind, of one run or of all, in order of key. */
  *records(kind: RunKind, run: bigint): Generator<SpooledRecord, void, undefined> {
    const page = this.#file.prepare(
      'select key, line from records where kind = ? and run = ? and key > ? order by key limit ?',
    );
    for (let after = -1n; ; ) {
      const rows = page.all(RUN_KINDS.indexOf(kind), run, after, PAGE) as unknown as SpooledRecord[];
      yield* rows;
      if (rows.length < PAGE) return;
      after = rows.at(-1)!.key;
    }
  }

  /** Yields the keys of all runs. */
  *runs(): Generator<bigint, void, undefined> {
    const next = this.#file.prepare('select min(run) as run from records where kind = ? and run > ?');
    for (let after = -1n; ; ) {
      const { run } = next.get(RUN_KINDS.indexOf('run'), after) as { readonly run: bigint | null };
      if (run === null) return;
      yield run;
      after = run;
    }
  }

  has(run: bigint): boolean {
    const found = this.#file.prepare('select 1 from records where kind = ? and run = ? and key = ?');
    return found.get(RUN_KINDS.indexOf('run'), run, run) !== undefined;
  }

  close(): void {
    this.#file.close();
  }
}
