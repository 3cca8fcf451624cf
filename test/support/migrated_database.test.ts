import { describe, expect, it } from 'vitest';
import { openOn } from '../store/on_store.ts';
import { Scene } from '../store/scene.ts';
import { describeSchema } from '../store/schema.ts';
import { countRows, outsideSql } from '../store/sql.ts';
import { createDatabase, ENGINES } from './database.ts';
import { createMigratedDatabase } from './migrated_database.ts';

describe.each(ENGINES)('createMigratedDatabase, on %s', (engine) => {
  it('returns the schema that a store makes in an empty database, and no rows', async () => {
    await using fresh = await createDatabase(engine);
    await (await openOn(fresh)).close();
    await using copy = await createMigratedDatabase(engine);
    expect(await describeSchema(copy)).toBe(await describeSchema(fresh));
    const sql = await outsideSql(copy);
    expect(new Set(Object.values(await countRows(sql)))).toEqual(new Set([0]));
    await sql.close();
  });

  it('returns databases that share nothing, also if they are made at the same time', async () => {
    await using first = await createMigratedDatabase(engine);
    const store = await openOn(first);
    await new Scene(store, 'n').create();
    const others = await Promise.all([1, 2, 3].map(() => createMigratedDatabase(engine)));
    for (const other of others) {
      const sql = await outsideSql(other);
      expect(await countRows(sql, 'n')).toMatchObject({ trajectories: 0 });
      await sql.close();
      await other.drop();
    }
    await store.close();
  });
});
