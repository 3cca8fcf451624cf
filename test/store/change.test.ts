import pg from 'pg';
import { describe, expect, it } from 'vitest';
import { type Hint, trajectoryHint } from '../../src/domain/change.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { Store } from '../../src/store/contract/store.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { wordStep } from '../support/steps.ts';
import { describeStore, openOn } from './on_store.ts';
import { Scene } from './scene.ts';
import { outsideSql } from './sql.ts';

/** Notifications may be repeated or lost. Tests wait until one arrives, and repeat the change if none does. */
class Ear {
  readonly heard: (Hint | undefined)[] = [];
  readonly stop: () => void;

  constructor(store: Store) {
    this.stop = store.onChange((hint) => this.heard.push(hint));
  }

  async hears(key: bigint): Promise<void> {
    await expect
      .poll(() => this.heard.includes(trajectoryHint(key)) || this.heard.includes(undefined), { timeout: 5_000 })
      .toBe(true);
  }

  forget(): void {
    this.heard.length = 0;
  }
}

describeStore('notifications of changes', (on) => {
  it('R2, RD2: are sent for an append, a seal and a deletion, after the commit', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const seen: bigint[] = [];
    const ear = new Ear(on.store);
    const stop = on.store.onChange((hint) => {
      if (hint === trajectoryHint(made.ref.key))
        scene.store.getTrajectory(scene.namespace, made.id).then(
          (row) => seen.push(row?.nextStepNumber ?? -1n),
          () => undefined, // the last check may run after the store was closed
        );
    });
    await scene.append(made, [wordStep(0n, 'a')]);
    await ear.hears(made.ref.key);
    await expect.poll(() => seen).toContain(1n);
    ear.forget();
    await scene.seal(made);
    await ear.hears(made.ref.key);
    ear.forget();
    await scene.delete(made);
    await ear.hears(made.ref.key);
    await expect.poll(() => seen).toContain(-1n);
    stop();
    ear.stop();
  });

  it('RD2: name the trajectories of a group that changed', async () => {
    const scene = on.scene();
    const made = await Promise.all([scene.create(), scene.create(), scene.create()]);
    const ear = new Ear(on.store);
    const batches = made.map((each, i) => scene.batch(each, [wordStep(i === 1 ? 5n : 0n, 'a')]));
    await on.store.append(batches, 'never');
    for (const i of [0, 2]) await ear.hears(made[i]?.ref.key as bigint);
    expect(ear.heard).not.toContain(trajectoryHint(made[1]!.ref.key));
    ear.stop();
  });

  it('RD2: name every trajectory that a cascade deleted', async () => {
    const scene = on.scene();
    const root = await scene.createWith(['a']);
    const child = await scene.branch(root, 0n);
    const ear = new Ear(on.store);
    await scene.delete(root, 'CASCADE');
    for (const { ref } of [root, child]) await ear.hears(ref.key);
    ear.stop();
  });

  it('stop after the subscription ends; a listener that throws does not affect others', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const stopped = new Ear(on.store);
    stopped.stop();
    stopped.stop();
    const stopBad = on.store.onChange(() => {
      throw new Error('a listener that fails');
    });
    const ear = new Ear(on.store);
    await scene.append(made, [wordStep(0n, 'a')]);
    await ear.hears(made.ref.key);
    expect(stopped.heard).toEqual([]);
    stopBad();
    ear.stop();
  });
});

describe('notifications between instances, on postgres', () => {
  it('R2: reach another instance for appends, seals and deletions, also after its listening connection was cut', async () => {
    await using database = await createMigratedDatabase('postgres');
    const [one, two] = [await openOn(database), await openOn(database)];
    const scene = new Scene(one);
    const ear = new Ear(two);
    const made = await scene.create();
    await scene.append(made, [wordStep(0n, 'a')]);
    await ear.hears(made.ref.key);
    ear.forget();
    await scene.seal(made);
    await ear.hears(made.ref.key);
    ear.forget();

    const admin = new pg.Client(database.adminUrl);
    await admin.connect();
    const { rows } = await admin.query(
      `select pg_terminate_backend(pid) from pg_stat_activity
       where datname = current_database() and pid <> pg_backend_pid() and query ilike '%listen%'`,
    );
    expect(rows.length).toBeGreaterThan(0);
    await admin.end();
    // Whatever happened meanwhile: the notification says that anything may have changed.
    await expect.poll(() => ear.heard.includes(undefined), { timeout: 10_000 }).toBe(true);
    ear.forget();
    const other = await scene.createWith(['b']);
    await expect
      .poll(
        async () => {
          await scene.append(other, [wordStep((await scene.get(other.id)).nextStepNumber, 'c')]);
          return ear.heard.includes(trajectoryHint(other.ref.key)) || ear.heard.includes(undefined);
        },
        { timeout: 10_000, interval: 200 },
      )
      .toBe(true);
    await scene.delete(other);
    await ear.hears(other.ref.key);
    await one.close();
    await two.close();
  });

  it('RD2: report a group whose keys do not fit into one notification', async () => {
    await using database = await createMigratedDatabase('postgres');
    const sql = await outsideSql(database);
    await sql.rows(`select setval('trajectory_keys', 1000000000000000000)`);
    await sql.close();
    const [one, two] = [await openOn(database), await openOn(database)];
    const scene = new Scene(one);
    const made: Trajectory[] = [];
    while (made.length < 650) made.push(...(await Promise.all(Array.from({ length: 50 }, () => scene.create()))));
    // Postgres accepts less than 8,000 bytes.
    expect(made.map(({ ref }) => trajectoryHint(ref.key)).join().length).toBeGreaterThan(8_000);
    const ear = new Ear(two);
    await one.append(
      made.map((each) => scene.batch(each, [wordStep(0n, 'a')])),
      'never',
    );
    for (const { ref } of made) await ear.hears(ref.key);
    await one.close();
    await two.close();
  });
});
