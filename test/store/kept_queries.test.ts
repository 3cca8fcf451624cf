import { DummyDriver, Kysely, PostgresAdapter, PostgresIntrospector, PostgresQueryCompiler } from 'kysely';
import { describe, expect, it } from 'vitest';
import { KeptQueries } from '../../src/store/sql/kit/kept_queries.ts';

interface Tables {
  readonly things: { readonly key: number; readonly name: string; readonly kind: string };
}

const db = new Kysely<Tables>({
  dialect: {
    createAdapter: () => new PostgresAdapter(),
    createDriver: () => new DummyDriver(),
    createIntrospector: (of) => new PostgresIntrospector(of),
    createQueryCompiler: () => new PostgresQueryCompiler(),
  },
});

describe('cached queries', () => {
  const asking = () => {
    const kept = new KeptQueries();
    let built = 0;
    const ask = (name: string, keys: readonly number[], most: number) =>
      kept.of('things', [name, keys, most], (ofName, among, limit) => {
        built += 1;
        const query = db.selectFrom('things').select('key').where('kind', '=', 'odd').where('name', '=', ofName);
        return query.where('key', 'in', among).limit(limit);
      });
    return { ask, built: () => built };
  };

  it('are built once, and each execution uses its own values', () => {
    const { ask, built } = asking();
    const first = ask('a', [1, 2], 5);
    const second = ask('b', [3, 4], 6);
    expect(built()).toBe(1);
    expect(second.sql).toBe(first.sql);
    expect(first.parameters).toEqual(['odd', 'a', 1, 2, 5]);
    expect(second.parameters).toEqual(['odd', 'b', 3, 4, 6]);
  });

  it('are separate for lists of different lengths', () => {
    const { ask, built } = asking();
    expect(ask('a', [1], 5).parameters).toEqual(['odd', 'a', 1, 5]);
    expect(ask('a', [1, 2, 3], 5).parameters).toEqual(['odd', 'a', 1, 2, 3, 5]);
    expect(ask('c', [7], 8).parameters).toEqual(['odd', 'c', 7, 8]);
    expect(built()).toBe(2);
  });

  it('of a page have a common limit in their text, and any other limit as a value', () => {
    const kept = new KeptQueries();
    const ask = (limit: number) =>
      kept.page('page', limit, ['a'], (most, name) =>
        db.selectFrom('things').select('key').where('name', '=', name).limit(most),
      );
    expect(ask(51)).toMatchObject({ sql: expect.stringMatching(/limit 51$/), parameters: ['a'] });
    expect(ask(101)).toMatchObject({ sql: expect.stringMatching(/limit 101$/), parameters: ['a'] });
    expect(ask(52)).toMatchObject({ sql: expect.stringMatching(/limit \$2$/), parameters: ['a', 52] });
    expect(ask(53).parameters).toEqual(['a', 53]);
  });

  it('are bounded in number: beyond it they are dropped, and built again', () => {
    const { ask, built } = asking();
    for (let length = 1; length <= 501; length += 1) ask('a', Array<number>(length).fill(1), 5);
    expect(ask('a', [9], 5).parameters).toEqual(['odd', 'a', 9, 5]);
    expect(built()).toBe(502);
  });
});
