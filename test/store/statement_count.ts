import { StatementSync } from 'node:sqlite';
import pg from 'pg';
import { vi } from 'vitest';
import { Lease } from '../../src/store/postgres/pool.ts';
import { ReadThreads } from '../../src/store/sqlite/read_threads.ts';
import type { Engine } from '../support/database.ts';

/**
 * Like `statementsOf`, for work that can be done twice: the first run may open connections, which takes statements of
 * its own.
 */
export async function statementsOfWarm(engine: Engine, work: () => Promise<unknown>): Promise<number> {
  await work();
  return statementsOf(engine, work);
}

/**
 * Returns how many statements the work sends to the database. Notifications are not counted: they are sent some time
 * later.
 */
export async function statementsOf(engine: Engine, work: () => Promise<unknown>): Promise<number> {
  return (await (engine === 'postgres' ? textsOf(work) : sqliteTextsOf(work))).length;
}

/**
 * Returns the statements that the work runs on SQLite: first those of the serving thread in order, then those of read
 * threads in order.
 */
export async function sqliteTextsOf(work: () => Promise<unknown>): Promise<string[]> {
  const { serving, reading } = await sqliteTextsByThread(work);
  return [...serving, ...reading];
}

/** Each transaction begins with it. It reads a number in memory. */
const FIND_OTHERS = 'pragma data_version';

/** Returns the same, grouped by the thread that runs them. */
export async function sqliteTextsByThread(
  work: () => Promise<unknown>,
): Promise<{ readonly serving: string[]; readonly reading: string[] }> {
  const serving = [vi.spyOn(StatementSync.prototype, 'all'), vi.spyOn(StatementSync.prototype, 'run')];
  const reading = vi.spyOn(ReadThreads.prototype, 'run');
  try {
    await work();
    return {
      serving: serving
        .flatMap((spy) => spy.mock.contexts.map((each) => sourceOf(each as StatementSync)))
        .filter((text) => text !== FIND_OTHERS),
      // Jobs that a thread splits into statements itself have no text.
      reading: reading.mock.calls.flatMap(([job]) => ('text' in job ? [job.text] : [])),
    };
  } finally {
    for (const spy of [...serving, reading]) spy.mockRestore();
  }
}

/** Empty for a statement on a temporary file that is closed. */
function sourceOf(statement: StatementSync): string {
  try {
    return statement.sourceSQL;
  } catch {
    return '';
  }
}

/**
 * The statements that the work sends to Postgres, in order, without notifications. What a pool sends by itself does not
 * count either: the set-up of a connection, and the transaction of a single statement behind a pooler.
 */
export async function textsOf(work: () => Promise<unknown>): Promise<string[]> {
  const spies = [
    vi.spyOn(Lease.prototype, 'query'),
    vi.spyOn(Lease.prototype, 'rows'),
    vi.spyOn(Lease.prototype, 'copy'),
    vi.spyOn(Lease.prototype, 'rollback'),
  ];
  try {
    await work();
    const sent = spies.flatMap(({ mock }) =>
      mock.calls.map(([text = 'rollback'], i) => ({ text, at: mock.invocationCallOrder[i]! })),
    );
    return sent
      .sort((a, b) => a.at - b.at)
      .map(({ text }) => text)
      .filter((text) => !text.includes('pg_notify'));
  } finally {
    for (const spy of spies) spy.mockRestore();
  }
}

/**
 * Returns the largest number of parameters of a read statement that the work sends. On SQLite, the disk decides which
 * thread reads by key.
 */
export async function mostParametersOf(engine: Engine, work: () => Promise<unknown>): Promise<number> {
  const sent = engine === 'postgres' ? vi.spyOn(pg.Client.prototype, 'query') : vi.spyOn(ReadThreads.prototype, 'run');
  const serving = vi.spyOn(StatementSync.prototype, 'all');
  try {
    await work();
    const calls = sent.mock.calls as unknown[][];
    const counts = calls.map(([statement]) => parametersOf(statement).length);
    return Math.max(...counts, ...serving.mock.calls.map(({ length }) => length));
  } finally {
    sent.mockRestore();
    serving.mockRestore();
  }
}

function parametersOf(statement: unknown): readonly unknown[] {
  const { values, parameters } = statement as { values?: unknown[]; parameters?: unknown[] };
  return values ?? parameters ?? [];
}
