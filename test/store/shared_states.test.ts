import pg from 'pg';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { NewState } from '../../src/domain/step.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { makeStep, newState, stateRef, wordStep } from '../support/steps.ts';
import { collectUnused } from './collection.ts';
import { describeStore, describeStoreOn } from './on_store.ts';
import { committed, putState, refusalOf, type Scene } from './scene.ts';
import { waitingForLocks } from './sql.ts';
import { sqliteTextsByThread, textsOf } from './statement_count.ts';

describeStore('states that trajectories share', (on) => {
  it('W7: groups that share states, inline in one and by digest in the other, never deadlock', async () => {
    const scene = on.scene();
    const texts = await (on.engine === 'postgres' ? textsOf : serving)(async () => {
      for (let round = 0; round < 20; round += 1) {
        const states = Array.from({ length: 6 }, (_, i) => newState(`${round}/${i}`));
        const put = states.filter((_, i) => (i + round) % 3 > 0);
        for (const { data } of put) await putState(scene.store, scene.namespace, data);
        const made = await Promise.all(Array.from({ length: 4 }, () => scene.create()));
        await Promise.all(
          made.map((each, k) => {
            // Other groups send other states inline. A state that was not uploaded is inline in all of them.
            const inline = states.filter((state, i) => !put.includes(state) || (i + k) % 2 === 0);
            return appendTo(scene, each, k % 2 === 0 ? states : states.toReversed(), inline);
          }),
        );
      }
    });
    // Postgres resolves a deadlock by rolling back one transaction, which the store then retries.
    expect(texts.filter((text) => text === 'rollback')).toEqual([]);
  });

  const serving = async (work: () => Promise<unknown>) => (await sqliteTextsByThread(work)).serving;

  it('W9: bytes of a state that steps already refer to are not written again', async () => {
    const scene = on.scene();
    const [one, two] = [await scene.create(), await scene.create()];
    const shared = newState('shared');
    await appendTo(scene, one, [shared], [shared]);
    const texts = await (on.engine === 'postgres' ? textsOf : serving)(() => appendTo(scene, two, [shared], [shared]));
    expect(texts.filter((text) => /(insert into|update) (anabranch\.)?states/.test(text))).toEqual([]);
    expect((await scene.steps(two))[0]?.step.states).toEqual([stateRef(shared, '0')]);
  });
});

describeStoreOn(['postgres'], 'states that trajectories share', (on) => {
  let other: pg.Client;

  beforeAll(async () => {
    other = new pg.Client(on.database.url);
    await other.connect();
    await other.query('set search_path to anabranch');
  });
  afterAll(() => other?.end());

  async function holding<T>(statement: string, work: () => Promise<T>): Promise<T> {
    await other.query('begin');
    try {
      await other.query(statement);
      return await work();
    } finally {
      await other.query('rollback');
    }
  }

  const rowOf = ({ namespace }: Scene, { digest }: NewState) =>
    `select 1 from states where namespace = '${namespace}' and digest = '\\x${digest}' for update`;
  const insertOf = ({ namespace }: Scene, { digest, data }: NewState) =>
    `insert into states (namespace, digest, size, encoding, data, referenced, version, renew_time)
       values ('${namespace}', '\\x${digest}', ${data.length}, 'raw', '\\x${Buffer.from(data).toString('hex')}', true, 0, now())`;
  const waiting = () => waitingForLocks(async (text) => (await other.query(text)).rows, 1);

  it('W7: a state that steps already refer to is shared without waiting for the lock on its row', async () => {
    const scene = on.scene();
    const [one, two] = [await scene.create(), await scene.create()];
    const shared = newState('shared');
    await appendTo(scene, one, [shared], [shared]);
    await holding(rowOf(scene, shared), async () => {
      for (const [i, inline] of [[], [shared]].entries()) {
        const batch = scene.batch(two, [makeStep(BigInt(i), { states: [stateRef(shared)] })], { states: inline });
        expect(committed((await scene.store.append([batch], 'never'))[0]).nextStepNumber).toBe(BigInt(i + 1));
      }
    });
  });

  it('S2: a state that loses its last step during an append that refers to it is not collected', async () => {
    const scene = on.scene();
    const [deleted, made] = [await scene.create(), await scene.create()];
    const [shared, blocked] = [newState('shared'), newState('blocked')];
    await appendTo(scene, deleted, [shared], [shared]);
    let appending: Promise<unknown> | undefined;
    let collecting: Promise<unknown> | undefined;
    await holding(insertOf(scene, blocked), async () => {
      // The append has found the shared state, refers to it without a lock, and waits for the other one.
      appending = appendTo(scene, made, [shared, blocked], [shared, blocked]);
      await waiting();
      await scene.delete(deleted);
      collecting = collectUnused(scene.store);
      // Looks for transactions to wait for, and finds the append.
      await expect.poll(looksForReferrers, { timeout: 5000, interval: 5 }).toBe(true);
    });
    await Promise.all([appending, collecting]);
    await collectUnused(scene.store);
    expect(await scene.store.findStates(scene.namespace, [shared.digest], false)).toHaveLength(1);
    await scene.delete(made);
    await collectUnused(scene.store);
    expect(await scene.store.findStates(scene.namespace, [shared.digest], false)).toEqual([]);
  });

  async function looksForReferrers(): Promise<boolean> {
    await other.query('select pg_stat_clear_snapshot()');
    const { rows } = await other.query(
      `select 1 from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and query like '%from pg_locks%'`,
    );
    return rows.length > 0;
  }

  it('W9, D3: a state that disappears between check and lock refuses the step, and nothing of it is stored', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const [first, second] = [newState('a'), newState('b')].sort((a, b) => (a.digest < b.digest ? -1 : 1)) as [
      NewState,
      NewState,
    ];
    await putState(scene.store, scene.namespace, second.data);
    await other.query('begin');
    await other.query(insertOf(scene, first));
    const refused = refusalOf(appendTo(scene, made, [first, second], [first]));
    await waiting();
    await other.query(`delete from states where namespace = '${scene.namespace}' and digest = '\\x${second.digest}'`);
    await other.query('commit');
    expect(await refused).toMatchObject({ reason: 'STATE_NOT_FOUND', metadata: { digest: second.digest } });
    expect((await scene.get(made.id)).nextStepNumber).toBe(0n);
    await scene.append(made, [wordStep(0n, 'goes on')]);
  });
});

/** Appends one step that refers to the states by the names 0, 1, …, with the bytes of the inline ones. */
function appendTo(scene: Scene, made: Trajectory, states: readonly NewState[], inline: readonly NewState[]) {
  const refs = states.map((state, i) => stateRef(state, `${i}`));
  return scene.append(made, [makeStep(0n, { states: refs })], { states: inline });
}
