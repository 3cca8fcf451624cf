import { existsSync } from 'node:fs';
import { copyFile } from 'node:fs/promises';
import { DatabaseSync } from 'node:sqlite';
import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest';
import { openStore } from '../../src/store/open.ts';
import { openSqlite } from '../../src/store/sqlite/open.ts';
import { migrateIntoNewFile } from '../../src/store/sqlite_file/new_file.ts';
import { createDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { makeStep, newState, smallRef, stateRef, textObservation } from '../support/steps.ts';
import { undoMigrations } from './earlier_schema.ts';
import { openOn } from './on_store.ts';
import { putState, readWhole, Scene } from './scene.ts';
import { outsideSql, sqlitePath } from './sql.ts';
import { faultsOf } from './verified.ts';

/** A file of the version before segments, with states of all kinds. Each test has a copy of it. */
let former: Awaited<ReturnType<typeof makeFormer>>;
beforeAll(async () => {
  former = await makeFormer();
});
afterAll(() => former.database.drop());

it('V1, D5: damage of a file before segments is logged when it is migrated, and reads report it', async () => {
  await using copy = await copyFormer();
  const { sql, path, scene, made, large, small } = copy;
  await sql.rows(`update states set data = x'ff' where digest in (x'${large.digest}', x'${small.digest}')`);
  const warned: { check?: string; digest?: string }[] = [];
  const silent = () => undefined;
  const logger = { info: silent, error: silent, warn: (details: object) => void warned.push(details) };
  const store = await openStore({ engine: 'sqlite', path }, { logger });
  onTestFinished(() => store.close());
  expect(warned.map(({ check, digest }) => [check, digest]).sort()).toEqual(
    [large, small].map(({ digest }) => ['STATES', digest]).sort(),
  );
  expect(await faultsOf(store)).toHaveLength(2);
  expect(await new Scene(store, scene.namespace).steps(made)).toEqual(copy.before);
  for (const { digest } of [large, small])
    await expect(store.readState(scene.namespace, digest, 0)).rejects.toMatchObject({ reason: 'STATE_CORRUPT' });
});

it('S1, S2: states that steps do not name keep their rows, and small ones that steps name do not', async () => {
  await using copy = await copyFormer();
  const { sql, scene, large, named, put, small } = copy;
  const store = await openOn(copy);
  onTestFinished(() => store.close());
  const digests = (await sql.rows('select hex(digest) as digest from states')).map(({ digest }) => `${digest}`);
  const expected = [large, named, put].map(({ digest }) => digest.toUpperCase());
  expect(digests.sort()).toEqual(expected.sort());
  for (const each of [large, named, put])
    expect(await readWhole(store, scene.namespace, each.digest)).toEqual(Buffer.from(each.data));
  expect(await store.findStates(scene.namespace, [small.digest], false)).toEqual([]);
});

it.each([
  ['the state [0-9A-F]+ is not the same', `delete from states where size > 5000`],
  ['the reference to a state 1 0 is not the same', `delete from state_refs where name <> ''`],
  ['the chunk of a state .* is not the same', `update state_chunks set data = x'00'`],
  ['trajectories has 0 rows instead of 1', 'delete from trajectories'],
])('D3: a new file that differs from the former one does not take its place: %s', async (message, change) => {
  await using copy = await copyFormer();
  const { path, sql } = copy;
  const failed = (fault: unknown) => expect.unreachable(JSON.stringify(fault));
  const migrating = migrateIntoNewFile(
    path,
    async (copy) => {
      await (await openSqlite(copy, failed)).close();
      const file = new DatabaseSync(copy);
      file.exec(change);
      file.close();
      return [];
    },
    failed,
  );
  await expect(migrating).rejects.toThrow(new RegExp(`which differs: ${message}`));
  expect(existsSync(`${path}.migrating`)).toBe(true);
  expect(await sql.rows('select count(*) as n from step_states')).toEqual([{ n: 2n }]);
});

async function copyFormer() {
  const database = await createDatabase('sqlite');
  const path = sqlitePath(database);
  await copyFile(sqlitePath(former.database), path);
  const sql = await outsideSql(database);
  return {
    ...former,
    ...{ engine: 'sqlite' as const, url: database.url, path, sql },
    async [Symbol.asyncDispose]() {
      await sql.close();
      await database.drop();
    },
  };
}

async function makeFormer() {
  const database = await createMigratedDatabase('sqlite');
  const store = await openOn(database);
  const scene = new Scene(store);
  const [large, small, named, put] = [
    newState('large'.repeat(2000)),
    newState('small'),
    newState('named'),
    newState('put'.repeat(100_000)),
  ];
  const content = { kind: 'state', digest: named.digest, mediaType: '', size: named.data.length } as const;
  await putState(store, scene.namespace, named.data);
  await putState(store, scene.namespace, put.data);
  const made = await scene.create();
  const states = [stateRef(large), smallRef(small, 'small')];
  await scene.append(made, [makeStep(0n, { states, observations: [textObservation('', { content })] })], {
    states: [large],
  });
  const before = await scene.steps(made);
  await store.close();
  const sql = await outsideSql(database);
  await undoMigrations(sql, '0018_segments');
  await sql.close();
  return { database, scene, made, before, large, small, named, put };
}
