import { setTimeout as delay } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { openOn } from '../store/on_store.ts';
import { readWhole, Scene } from '../store/scene.ts';
import { countRows, type OutsideSql, outsideSql } from '../store/sql.ts';
import { storedStates } from '../store/state_chains.ts';
import { expectVerified } from '../store/verified.ts';
import { ENGINES } from '../support/database.ts';
import { dose } from '../support/dose.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { type SpawnedServer, spawnServer } from '../support/spawned-server.ts';
import { reportFigures } from './figures.ts';
import { seededRandom } from './random.ts';
import { expectKept, isRemoval, keptStates, type Made, makeTrajectories, partsOf, STATES, WHOLE } from './retained.ts';

const KILLS = dose(1, 10);
/** More than a server removes before it is killed. */
const TRAJECTORIES = 40;

const SERVER = 'test/faults/retaining-server.ts';

describe.each(ENGINES)('kill -9 of a server that applies stored policies, on %s', (engine) => {
  it('S15, S14, D5: another server goes on when the lease has ended; no kept state is lost, and nothing is left over', async () => {
    const random = seededRandom();
    await using database = await createMigratedDatabase(engine);
    let sql = await outsideSql(database);
    const start = () => spawnServer({ program: SERVER, database: database.url });
    const opened = async <T>(use: (scene: Scene) => Promise<T>): Promise<T> => {
      // A store that this process closes drops the locks of the process's other connections to an SQLite file.
      await sql.close();
      const store = await openOn(database);
      const result = await use(new Scene(store, 'default')).finally(() => store.close());
      sql = await outsideSql(database);
      return result;
    };
    const made: Made[] = [];
    let [kills, interrupted] = [0, 0];
    let other: SpawnedServer | undefined;
    // A kill may come after the last removal, so kills go on until enough fell in between.
    for (; interrupted < KILLS && kills < 10 * KILLS; kills += 1) {
      await opened(async (scene) => {
        made.push(...(await makeTrajectories(scene, TRAJECTORIES)));
        for (const [name, policy] of [['states', STATES] as const, ['whole', WHOLE] as const]) {
          // Another interval, so that the policy is due at once.
          const stored = { name, policy, intervalMs: 3_600_000 + kills };
          await scene.store.setRetentionPolicy(scene.namespace, stored);
        }
      });
      const before = await references(sql);
      const server = await start();
      await until(async () => (await references(sql)) < before);
      await delay(random.between(0, 50));
      await server.kill();
      const isInterrupted = (await leases(sql)) > 0;
      await opened(async (scene) => {
        await expectVerified(scene.store);
        for (const each of made) await expectKept(scene, each);
        const left = [...(await partsOf(scene, false))].filter(isRemoval).length;
        if (isInterrupted && left > 0) interrupted += 1;
      });
      other = await start();
      await until(async () => (await unfinished(sql)) === 0);
      await other.terminate();
    }
    expect(interrupted).toBe(KILLS);
    await opened(async ({ store, namespace }) => {
      const scene = new Scene(store, namespace);
      const inside = await outsideSql(database);
      expect((await partsOf(scene, true)).filter(isRemoval), 'the policies have removed everything').toEqual([]);
      const policies = await store.listRetentionPolicies(namespace, { limit: 10, after: undefined });
      expect(policies.map(({ last }) => last?.error)).toEqual([undefined, undefined]);
      // As maintenance does: of a deletion that was killed, the rest is purged.
      while (await store.purgeDeleted(500));
      const kept = keptStates(made);
      const stored = async () => [...(await storedStates(inside, namespace)).keys()].sort();
      const expected = [...new Set(kept.map(({ digest }) => digest))].sort();
      for (let i = 0; i < 100 && (await stored()).length > expected.length; i += 1) await store.collectStates(24, 500);
      await expectVerified(store);
      expect(await stored()).toEqual(expected);
      for (const { digest, data } of kept)
        expect(Buffer.compare(await readWhole(store, namespace, digest), data)).toBe(0);
      const left = made.filter(({ isSealed }) => !isSealed);
      expect(await countRows(inside, namespace)).toMatchObject({ trajectories: left.length, state_refs: kept.length });
      for (const each of made) await expectKept(scene, each);
      await inside.close();
      reportFigures(`kill -9 of a server that applies stored policies, on ${engine}`, {
        kills,
        'kills within an execution': interrupted,
        trajectories: made.length,
        'kept states read back': kept.length,
        'states left over': 0,
        lost: 0,
      });
    });
    await sql.close();
  });
});

/** Returns how many policies are being applied, or were when their server was killed. */
async function leases(sql: OutsideSql): Promise<number> {
  const [row] = await sql.rows('select count(*) as leased from retention_policies where lease is not null');
  return Number(row?.leased);
}

/** Returns how many states the steps refer to, which retention reduces. */
async function references(sql: OutsideSql): Promise<number> {
  const [row] = await sql.rows('select count(*) as states from state_refs');
  return Number(row?.states);
}

/** Returns how many policies have not been applied since they were set. */
async function unfinished(sql: OutsideSql): Promise<number> {
  const [row] = await sql.rows(
    'select count(*) as waiting from retention_policies where last_start_time is null or last_start_time < update_time',
  );
  return Number(row?.waiting);
}

/** Asks again until the condition holds. The time of the test bounds it. */
async function until(condition: () => Promise<boolean>): Promise<void> {
  while (!(await condition())) await delay(5);
}
