import { StatementSync } from 'node:sqlite';
import pg from 'pg';
import { vi } from 'vitest';
import type { Engine } from '../support/database.ts';

/** As `statementsOf`, of work that can be done twice: the first time may open connections, which has statements of its own. */
export async function statementsOfWarm(engine: Engine, work: () => Promise<unknown>): Promise<number> {
  await work();
  return statementsOf(engine, work);
}

/** How many statements the work sends to the database, but for hints, which go their own way some time after. */
export async function statementsOf(engine: Engine, work: () => Promise<unknown>): Promise<number> {
  const spies =
    engine === 'postgres'
      ? [vi.spyOn(pg.Client.prototype, 'query')]
      : [vi.spyOn(StatementSync.prototype, 'all'), vi.spyOn(StatementSync.prototype, 'run')];
  try {
    await work();
    const calls = spies.flatMap((spy) => spy.mock.calls as unknown[][]);
    return calls.filter(([text]) => !(typeof text === 'string' && text.includes('pg_notify'))).length;
  } finally {
    for (const spy of spies) spy.mockRestore();
  }
}

/** What work sends to Postgres, in order, but for hints. */
export async function textsOf(work: () => Promise<unknown>): Promise<string[]> {
  const spy = vi.spyOn(pg.Client.prototype, 'query');
  try {
    await work();
    const calls = spy.mock.calls as unknown[][];
    return calls.map(([query]) => textOf(query)).filter((text) => !text.includes('pg_notify'));
  } finally {
    spy.mockRestore();
  }
}

function textOf(query: unknown): string {
  return typeof query === 'string' ? query : String((query as { text?: string }).text ?? '');
}
