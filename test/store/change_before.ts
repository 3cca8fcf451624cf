import { expect, vi } from 'vitest';
import { Lease } from '../../src/store/postgres/pool.ts';
import { KeyReads } from '../../src/store/sqlite/key_reads.ts';
import { type ReadJob, ReadThreads } from '../../src/store/sqlite/read_threads.ts';
import type { Engine } from '../support/database.ts';

/** Runs `change` just before the first statement of `read` whose text matches, and after all statements before it. */
export async function changeBefore<T>(
  engine: Engine,
  text: RegExp,
  change: () => Promise<unknown>,
  read: () => Promise<T>,
): Promise<T> {
  let changing: Promise<unknown> | undefined;
  const changed = (statement: string) => {
    // Statements of the change itself must not wait for it.
    if (changing !== undefined || !text.test(statement)) return undefined;
    changing = Promise.resolve().then(change);
    return changing;
  };
  const spies = engine === 'postgres' ? holdStatements(changed) : holdJobs(changed);
  try {
    const result = await read();
    expect(changing).toBeDefined();
    return result;
  } finally {
    for (const spy of spies) spy.mockRestore();
  }
}

function holdStatements(changed: (text: string) => Promise<unknown> | undefined) {
  const { rows, query } = Lease.prototype;
  return [
    vi.spyOn(Lease.prototype, 'rows').mockImplementation(async function (this: Lease, text, values) {
      await changed(text);
      return rows.call(this, text, values);
    }),
    vi.spyOn(Lease.prototype, 'query').mockImplementation(async function (this: Lease, text, values) {
      await changed(text);
      return query.call(this, text, values);
    }),
  ];
}

/** All reads run on threads, because a read by key waits for nothing. */
function holdJobs(changed: (text: string) => Promise<unknown> | undefined) {
  const { run } = ReadThreads.prototype;
  return [
    vi.spyOn(KeyReads.prototype, 'run').mockReturnValue(undefined),
    vi.spyOn(ReadThreads.prototype, 'run').mockImplementation(async function (this: ReadThreads, job, signal) {
      await changed((job as ReadJob & { text?: string }).text ?? '');
      return run.call(this, job, signal) as never;
    }),
  ];
}
