import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import type { AppendBatch, AppendOutcome } from '../../src/store/contract/append.ts';
import type { Store } from '../../src/store/contract/store.ts';
import { openStore } from '../../src/store/open.ts';
import { sqlStore } from '../../src/store/sql/store.ts';
import { AppendThread } from '../../src/store/sqlite/append_thread.ts';
import { noTimeYet } from '../../src/store/sqlite/connection.ts';
import { openSqlite } from '../../src/store/sqlite/engine.ts';
import { packBatches } from '../../src/store/sqlite/packing.ts';
import { createDatabase } from '../support/database.ts';
import { wordStep } from '../support/steps.ts';

const caller = { namespace: 'default', actor: '' };
const logger = { warn() {}, error() {} };

async function makeWriter(store: Store) {
  const fields = { name: '', taskId: '', labels: new Map(), metadataJson: '', metrics: new Map() };
  const making = { id: randomUUID(), uid: randomUUID(), root: undefined, states: [], ...fields };
  const made = await store.createTrajectory(caller, making, undefined);
  return (from: number, count: number, word = 'a'): AppendBatch => ({
    caller,
    ref: made.ref,
    trajectoryId: made.id,
    uid: undefined,
    writerEpoch: undefined,
    steps: Array.from({ length: count }, (_, i) => wordStep(BigInt(from + i), word)),
    states: [],
    seal: undefined,
  });
}

const ends = (outcomes: readonly AppendOutcome[]) =>
  outcomes.map((outcome) => (outcome.kind === 'committed' ? outcome.nextStepNumber : outcome.kind));

it('W7: groups, other writes and reads go on beside each other while the thread for large groups starts and works', async () => {
  await using database = await createDatabase('sqlite');
  const store = await openStore({ engine: 'sqlite', path: database.url.slice('sqlite:'.length) }, { logger });
  const told: (bigint | undefined)[] = [];
  store.onChange((key) => told.push(key));
  const [one, other] = [await makeWriter(store), await makeWriter(store)];
  for (let i = 0; i < 60; i += 1) {
    const group = store.append([one(i * 100, 100), other(i, 1), other(i, 1, 'else')], 'never');
    const beside = store.updateTrajectory(caller.namespace, one(0, 0).trajectoryId, { name: `${i}` });
    expect(ends(await group)).toEqual([BigInt(i * 100 + 100), BigInt(i + 1), 'refused']);
    await beside;
    const { ref, trajectoryId } = one(0, 0);
    expect(await store.getTrajectory(caller.namespace, trajectoryId)).toMatchObject({
      nextStepNumber: BigInt(i * 100 + 100),
    });
    expect(told.splice(0)).toContain(ref.key);
  }
  await store.close();
  await store.close();
});

it('D1, W2, W7: the thread commits, tells duplicates and refuses as every other writer does', async () => {
  await using database = await createDatabase('sqlite');
  const path = database.url.slice('sqlite:'.length);
  const engine = await openSqlite(path, () => undefined);
  const store = sqlStore(engine);
  const write = await makeWriter(store);
  const thread = new AppendThread({ path, clock: noTimeYet() }, () => undefined);
  await expect.poll(() => thread.ready, { timeout: 20_000 }).toBe(true);
  const commit = async (...batches: AppendBatch[]) => thread.commit(packBatches(batches)!);

  const first = await commit(write(0, 3));
  expect(first.changed).toEqual([write(0, 0).ref.key]);
  const [replayed, gap, late] = (await commit(write(1, 3), write(9, 1), write(4, 1))).outcomes;
  expect(replayed).toMatchObject({ kind: 'committed', nextStepNumber: 4n, duplicates: 2 });
  expect(gap).toMatchObject({ kind: 'refused', error: { name: 'AnabranchError', reason: 'STEP_GAP' } });
  expect(late).toMatchObject({ kind: 'refused', error: { reason: 'STEP_GAP' } });
  const seal = { ...write(4, 0), seal: { status: 'FAILED', message: 'why' } } as AppendBatch;
  expect((await commit(seal)).outcomes).toMatchObject([{ kind: 'committed', status: 'FAILED', statusMessage: 'why' }]);
  expect(await store.getTrajectory(caller.namespace, write(0, 0).trajectoryId)).toMatchObject({ nextStepNumber: 4n });
  await thread.close();
  await store.close();
});

it('A1: a thread that fails is told of once, and is not asked again', async () => {
  const faults: unknown[] = [];
  const thread = new AppendThread({ path: '/nowhere/at/all.db', clock: noTimeYet() }, (fault) => faults.push(fault));
  await expect.poll(() => faults.length, { timeout: 20_000 }).toBe(1);
  expect(thread.ready).toBe(false);
  await thread.close();
});
