import { describe, expect, it } from 'vitest';
import { openOn, refusedOpen } from '../store/on_store.ts';
import { Scene } from '../store/scene.ts';
import { type OutsideSql, outsideSql } from '../store/sql.ts';
import { expectVerified } from '../store/verified.ts';
import { addMigration, CONVERTED_AT_ONCE, convertSteps } from '../support/added_migration.ts';
import { ENGINES, type TestDatabase } from '../support/database.ts';
import { dose } from '../support/dose.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { spawnServer } from '../support/spawned-server.ts';
import { wordStep } from '../support/steps.ts';
import { reportFigures } from './figures.ts';

const STEPS = 8 * Number(CONVERTED_AT_ONCE) + 1;
/** Transactions of the conversion in which a server is killed. */
const KILLED_IN = dose([1, 3], [1, 2, 3, 5, 8]);

async function filled(database: TestDatabase) {
  const store = await openOn(database);
  const scene = new Scene(store);
  const made = await scene.create();
  await scene.append(
    made,
    Array.from({ length: STEPS }, (_, i) => wordStep(BigInt(i), `${i}`, { reward: i })),
  );
  const before = { row: await scene.get(made.id), steps: await scene.steps(made) };
  await store.close();
  return { namespace: scene.namespace, made, before };
}

const start = (database: TestDatabase, diesIn = '') =>
  spawnServer({
    program: 'test/faults/migrating-server.ts',
    database: database.url,
    env: { DIES_IN: diesIn },
  });

/** Steps whose conversion is committed. Undefined before the migration has begun, and after its end. */
async function convertedSteps(sql: OutsideSql): Promise<bigint | undefined> {
  const tables = await sql.tables();
  if (!tables.includes('converting_steps')) return undefined;
  const [row] = await sql.rows('select next, (select count(*) from step_texts) as texts from converting_steps');
  expect(Number(row?.texts)).toBe(Number(row?.next));
  return BigInt(Number(row?.next));
}

async function expectMigrated(database: TestDatabase, sql: OutsideSql, filled_: Awaited<ReturnType<typeof filled>>) {
  const { namespace, made, before } = filled_;
  expect(await convertedSteps(sql)).toBeUndefined();
  const [texts] = await sql.rows('select count(*) as n, count(distinct step_number) as steps from step_texts');
  expect([Number(texts?.n), Number(texts?.steps)]).toEqual([STEPS, STEPS]);
  expect((await refusedOpen(openOn(database))).message).toMatch(/newer version.*9001_step_texts/);
  using _ = addMigration(convertSteps());
  const store = await openOn(database);
  const scene = new Scene(store, namespace);
  expect({ row: await scene.get(made.id), steps: await scene.steps(made) }).toEqual(before);
  await expectVerified(store);
  await store.close();
}

describe.each(ENGINES)('the migration of a later version, on %s', (engine) => {
  it('D3: kills within it lose nothing, what was committed is kept, and the next start continues', async () => {
    await using database = await createMigratedDatabase(engine);
    const sql = await outsideSql(database);
    const before = await filled(database);

    await expect(start(database, 'statements')).rejects.toThrow('SIGKILL');
    expect(await sql.tables()).not.toContain('step_texts');
    expect(await sql.rows(`select name from kysely_migration where name = '9001_step_texts'`)).toEqual([]);
    // The transaction that is killed is undone.
    for (const transaction of KILLED_IN) {
      const end = BigInt(transaction) * CONVERTED_AT_ONCE;
      await expect(start(database, `${end}`)).rejects.toThrow('SIGKILL');
      expect(await convertedSteps(sql)).toBe(end - CONVERTED_AT_ONCE);
    }
    await (await start(database)).terminate();
    await expectMigrated(database, sql, before);
    await sql.close();
    reportFigures(`kill -9 of the migration on ${engine}`, { kills: KILLED_IN.length + 1, lost: 0 });
  });

  it.skipIf(engine === 'sqlite')('D3: two servers that start at once migrate once, and both serve', async () => {
    await using database = await createMigratedDatabase(engine);
    const sql = await outsideSql(database);
    const before = await filled(database);
    const servers = await Promise.all([start(database), start(database)]);
    await Promise.all(servers.map((each) => each.terminate()));
    await expectMigrated(database, sql, before);
    await sql.close();
  });
});
