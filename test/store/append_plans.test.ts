import pg from 'pg';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import type { Store } from '../../src/store/contract/store.ts';
import type { TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { wordStep } from '../support/steps.ts';
import { openOn } from './on_store.ts';
import { Scene } from './scene.ts';

interface Prepared {
  readonly name: string;
  readonly parameters: number;
  readonly custom_plans: bigint;
}

describe('W7: plans of appends on Postgres', () => {
  let database: TestDatabase;
  let store: Store;
  beforeEach(async () => {
    database = await createMigratedDatabase('postgres');
    store = await openOn(database);
  });
  afterEach(async () => {
    await store?.close();
    await database?.drop();
  });

  /** Returns the connection that runs the appends of `work`, which must be sequential. */
  async function connectionOf(work: () => Promise<unknown>): Promise<pg.Client> {
    const spy = vi.spyOn(pg.Client.prototype, 'query');
    try {
      await work();
      const call = (spy.mock.calls as unknown[][]).findIndex(([query]) =>
        (query as { readonly text?: string }).text?.startsWith('with free'),
      );
      return spy.mock.contexts[call] as unknown as pg.Client;
    } finally {
      spy.mockRestore();
    }
  }

  it('are made once for groups of any size, and find trajectories by their keys in a table of any size', async () => {
    const scene = new Scene(store);
    const made = await Promise.all(Array.from({ length: 3 }, () => scene.create()));
    let number = 0n;
    const appendTo = async (count: number) => {
      const batches = made.slice(0, count).map((each) => scene.batch(each, [wordStep(number, 'a')]));
      await store.append(batches, 'never');
    };
    await appendTo(3);
    const connection = await connectionOf(async () => {
      for (number = 1n; number < 20n; number += 1n)
        for (const each of made) await scene.append(each, [wordStep(number, 'a')]);
      for (; number < 40n; number += 1n) await appendTo(3);
    });
    const { rows } = await connection.query<Prepared>(
      `select name, cardinality(parameter_types) as parameters, custom_plans from pg_prepared_statements
         where statement like 'with free%' order by parameters`,
    );
    expect(rows).toMatchObject([
      { parameters: 1, custom_plans: 0n },
      { parameters: 31, custom_plans: 0n },
    ]);
    for (const { name, parameters } of rows) {
      const { rows: lines } = await connection.query<{ 'QUERY PLAN': string }>(
        `explain execute "${name}" (${Array(parameters).fill('null').join(', ')})`,
      );
      const scans = lines.flatMap(
        (line) => /(\w+ Scan(?: using \w+)?) on (?:trajectories|t)\b/.exec(line['QUERY PLAN'])?.[1] ?? [],
      );
      expect(scans).toEqual(['Index Scan using trajectories_pkey', 'Tid Scan']);
    }
  });
});
