import { randomBytes } from 'node:crypto';
import { expect, it } from 'vitest';
import { makeStep, newState, stateRef } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { putState, readWhole, refusalOf } from './scene.ts';

const KIB = 1024;

const CHUNK = 256 * KIB;

describeStore('damaged states', (on) => {
  /** Overwrites bytes in the table: the first eight bytes of the data of each row that matches the condition. */
  async function damage(table: 'states' | 'state_chunks', where: string): Promise<void> {
    const rows =
      on.engine === 'sqlite'
        ? await on.sql.rows(
            `update ${table} set data = x'deadbeefdeadbeef' || substr(data, 9) where ${where} returning 1 as n`,
          )
        : await on.sql.rows(
            `update ${table} set data = '\\xdeadbeefdeadbeef'::bytea || substr(data, 9) where ${where} returning 1 as n`,
          );
    if (on.engine === 'sqlite')
      await on.sql.rows(`update ${table} set data = cast(data as blob) where ${where} returning 1 as n`);
    expect(rows.length).toBeGreaterThan(0);
  }

  const corrupt = (digest: string) => ({ reason: 'STATE_CORRUPT', metadata: { digest } });

  it.each([
    ['as they are', randomBytes(3000)],
    ['compressed', Buffer.alloc(100_000, 'compresses well ')],
  ])('S3, D5: changed bytes of a whole state, stored %s, are reported as corrupt, not returned', async (_, bytes) => {
    const scene = on.scene();
    const state = newState(bytes);
    const made = await scene.create();
    await scene.append(made, [makeStep(0n, { states: [stateRef(state)] })], { states: [state] });
    await damage('states', `namespace = '${scene.namespace}'`);
    expect(await refusalOf(on.store.readState(scene.namespace, state.digest, 0))).toMatchObject(corrupt(state.digest));
    expect((await refusalOf(on.store.readState(scene.namespace, state.digest, 100))).reason).toBe('STATE_CORRUPT');
    expect((await scene.steps(made))[0]?.step.states).toEqual([stateRef(state)]);
  });

  it.each([
    ['as they are', randomBytes(4 * CHUNK)],
    ['compressed', Buffer.alloc(4 * CHUNK, 'compresses well ')],
  ])('S3, D5: a changed chunk, stored %s, makes every range that contains it fail', async (_, bytes) => {
    const { namespace } = on.scene();
    const digest = await putState(on.store, namespace, bytes);
    await damage(
      'state_chunks',
      `namespace = '${namespace}' and ordinal = (select max(ordinal) from state_chunks where namespace = '${namespace}') - 1`,
    );
    expect(await on.store.readState(namespace, digest, 0)).toHaveLength(CHUNK);
    expect(await refusalOf(on.store.readState(namespace, digest, 2 * CHUNK))).toMatchObject(corrupt(digest));
    expect(await refusalOf(on.store.readState(namespace, digest, 3 * CHUNK - 1))).toMatchObject(corrupt(digest));
    expect(await on.store.readState(namespace, digest, 3 * CHUNK)).toHaveLength(CHUNK);
  });

  it.each(['first', 'middle', 'last'])(
    'S3, D5: if the %s chunk of three is missing, the state is corrupt, never short',
    async (which) => {
      const { namespace } = on.scene();
      const digest = await putState(on.store, namespace, randomBytes(3 * CHUNK));
      const n = ['first', 'middle', 'last'].indexOf(which);
      const ordinals = await on.sql.rows(
        `select ordinal from state_chunks where namespace = '${namespace}' order by ordinal`,
      );
      await on.sql.rows(
        `delete from state_chunks where namespace = '${namespace}' and ordinal = ${ordinals[n]?.ordinal}`,
      );
      expect(await refusalOf(readWhole(on.store, namespace, digest))).toMatchObject(corrupt(digest));
      expect(await refusalOf(on.store.readState(namespace, digest, n * CHUNK + 5))).toMatchObject(corrupt(digest));
    },
  );

  it('S3, D5: chunks in the wrong order are corrupt', async () => {
    const { namespace } = on.scene();
    const bytes = randomBytes(3 * CHUNK);
    const digest = await putState(on.store, namespace, bytes);
    const of = `namespace = '${namespace}'`;
    const [first] = await on.sql.rows(`select min(ordinal) as n from state_chunks where ${of}`);
    const n = Number(first?.n);
    for (const [from, to] of [
      [n, n + 900],
      [n + 1, n],
      [n + 900, n + 1],
    ])
      await on.sql.rows(`update state_chunks set ordinal = ${to} where ${of} and ordinal = ${from}`);
    const outcome = await readWhole(on.store, namespace, digest).then(
      (read) => (read.equals(bytes) ? 'the state' : 'other bytes'),
      (error: { reason?: string }) => error.reason,
    );
    expect(outcome).toBe('STATE_CORRUPT');
  });

  it('S3: damage in one namespace does not affect another', async () => {
    const [one, other] = [on.scene().namespace, on.scene().namespace];
    const bytes = randomBytes(3000);
    const digest = await putState(on.store, one, bytes);
    await putState(on.store, other, bytes);
    const chunks = Number(
      (await on.sql.rows(`select count(*) as n from state_chunks where namespace = '${one}'`))[0]?.n,
    );
    await damage(chunks > 0 ? 'state_chunks' : 'states', `namespace = '${one}'`);
    expect((await refusalOf(on.store.readState(one, digest, 0))).reason).toBe('STATE_CORRUPT');
    expect((await readWhole(on.store, other, digest)).equals(bytes)).toBe(true);
  });
});
