import { expect, it } from 'vitest';
import type { NewState, Step } from '../../src/domain/step.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { Store } from '../../src/store/contract/store.ts';
import { decodedSteps } from '../support/encoded_steps.ts';
import { makeStep, newState, smallRef, stateRef, wordStep } from '../support/steps.ts';
import { archivedLines, exported } from './archived.ts';
import { changeBefore } from './change_before.ts';
import { describeStore, openOn } from './on_store.ts';
import { refusalOf, type Scene } from './scene.ts';
import { expectVerified } from './verified.ts';

const KIB = 1024;
const NAMES = ['agent', 'env', 'later', 'whole'] as const;

const large = (seed: number) => newState(`${seed} `.repeat(5 * KIB));
const small = (seed: number) => newState(`small ${seed}`);

describeStore('attached states that merges write into their steps', (on) => {
  const attach = (scene: Scene, { id }: Trajectory, stepNumber: number, name: string, { digest, data }: NewState) =>
    scene.store.attachState(scene.caller, {
      trajectoryId: id,
      uid: undefined,
      writerEpoch: undefined,
      stepNumber: BigInt(stepNumber),
      name,
      digest,
      mediaType: 'application/octet-stream',
      data,
    });
  const prune = (scene: Scene, { ref }: Trajectory, stepNumber: number, names: readonly string[]) =>
    scene.store.pruneStates(scene.namespace, ref, [{ stepNumber: BigInt(stepNumber), names, mediaTypes: [] }]);
  const merge = async (store: Store, { ref }: Trajectory) => {
    for (let left = [{ ref, rest: true }]; left.length > 0; ) left = await store.mergeSteps(left);
  };
  const attachedRows = async ({ ref }: Trajectory) =>
    (await on.sql.rows(`select step_number, name from attached_states where tree = ${ref.tree} order by 1, 2`)).map(
      ({ step_number, name }) => `${step_number} ${name}`,
    );
  const rowsOf = async ({ ref }: Trajectory) =>
    (
      await on.sql.rows(`select first_step_number, next_step_number, coalesce(body_bytes, octet_length(body)) as body,
        coalesce(states_bytes, octet_length(states)) as states
        from segments where tree = ${ref.tree} and trajectory = ${ref.key} order by 1`)
    ).map((row) => [row.first_step_number, row.next_step_number, row.body, row.states].map(Number));

  /** Everything that reads of the steps of a trajectory return. */
  const look = async (scene: Scene, made: Trajectory) => {
    const { store, namespace } = scene;
    const { tree, key } = made.ref;
    const lineage = await scene.lineage(made);
    const range = { from: 0n, to: 1000n, maxSteps: 1000, maxBytes: 4e6 };
    const views = await Promise.all(
      (['BASIC', 'FULL'] as const).map(async (view) => ({
        steps: await scene.steps(made, view, 7),
        encoded: (await store.readEncodedSteps(namespace, tree, lineage, range, view)).flatMap(decodedSteps),
        inline: (await store.readEncodedSteps(namespace, tree, lineage, { ...range, inlineBytes: KIB }, view)).map(
          ({ states }) => states?.map(({ digest, data }) => [digest, data && Buffer.from(data).toString()]),
        ),
      })),
    );
    const byName = await Promise.all(
      NAMES.map(async (name) => ({
        listed: (await store.listStepStates(namespace, tree, lineage, { name, from: 0n, limit: 99 })).map(
          ({ state: { data, ...state }, ...rest }) => ({ ...rest, state, data: data && Buffer.from(data).toString() }),
        ),
        checkpoint: await store.findCheckpoint(namespace, tree, lineage, 999n, [name]),
      })),
    );
    const { nextStepNumber } = await scene.get(made.id);
    const own = Array.from({ length: Number(nextStepNumber) }, (_, i) => BigInt(i));
    const bytes = await Promise.all(
      own.map(async (stepNumber) => {
        const found = await store.readSmallStates(namespace, { tree, owner: key, stepNumber }, NAMES);
        return [...found].map(([name, data]) => `${name}: ${Buffer.from(data)}`).sort();
      }),
    );
    const outlines = await store.readOutlines(namespace, tree, lineage, 0n, 1000);
    return { views, byName, bytes, outlines, archive: archivedLines(await exported(store, namespace)).sort() };
  };

  /** Steps with a large state `env` and a small state `agent`, each in a commit of its own. */
  const createWith = async (scene: Scene, count: number) => {
    const made = await scene.create();
    const steps: Step[] = [];
    for (let i = 0; i < count; i += 1) {
      const step = makeStep(BigInt(i), { states: [smallRef(small(i), 'agent'), stateRef(large(i))], reward: i / 3 });
      await scene.append(made, [step], { states: [large(i)] });
      steps.push(step);
    }
    return { made: await scene.get(made.id), steps };
  };

  it('W10: all reads, the archive and the check of the storage are the same before and after, and no rows are left', async () => {
    const scene = on.scene();
    const { made, steps } = await createWith(scene, 6);
    for (const number of [0, 2, 5]) await attach(scene, made, number, 'later', small(100 + number));
    for (const number of [2, 3]) await attach(scene, made, number, 'whole', large(100 + number));
    const branch = await scene.branch(made, 3n);
    const before = [await look(scene, made), await look(scene, branch)];
    await merge(scene.store, made);
    expect([await look(scene, made), await look(scene, branch)]).toEqual(before);
    expect(await attachedRows(made)).toEqual([]);
    expect(await rowsOf(made)).toHaveLength(1);
    await expectVerified(scene.store);
    const states = Array.from({ length: 6 }, (_, i) => large(i));
    expect(await scene.append(made, steps, { states })).toMatchObject({ duplicates: 6 });
    const sent = wordStep(2n, 'other', { states: [smallRef(small(102), 'later')] });
    expect((await refusalOf(scene.append(made, [sent]))).reason).toBe('STEP_CONFLICT');
    expect((await attach(scene, made, 2, 'later', small(102))).duplicate).toBe(true);
    expect((await refusalOf(attach(scene, made, 2, 'later', small(7)))).reason).toBe('STATE_CONFLICT');
  });

  it('W10: a state that is attached to merged steps is found by the sweep, and written by the next merge, once', async () => {
    const scene = on.scene();
    const { made } = await createWith(scene, 4);
    await scene.seal(made);
    await merge(scene.store, made);
    const isFound = async () => {
      const { found } = await scene.store.findUnmerged(undefined, 100_000, 0);
      return found.some(({ key }) => key === made.ref.key);
    };
    expect(await isFound()).toBe(false);
    await attach(scene, made, 1, 'later', small(50));
    expect(await isFound()).toBe(true);
    const before = await look(scene, made);
    await merge(scene.store, made);
    expect(await attachedRows(made)).toEqual([]);
    expect(await look(scene, made)).toEqual(before);
    expect(await isFound()).toBe(false);
  });

  it('S13, W10: pruned and restored states are the same before and after, again and again', async () => {
    const scene = on.scene();
    const { made } = await createWith(scene, 5);
    for (const number of [1, 2, 3]) {
      await attach(scene, made, number, 'later', small(number));
      await attach(scene, made, number, 'whole', large(10 + number));
    }
    await prune(scene, made, 1, ['later', 'whole', 'agent', 'env']);
    await merge(scene.store, made);
    await prune(scene, made, 2, ['later', 'whole', 'env']);
    await attach(scene, made, 1, 'later', small(1));
    await attach(scene, made, 1, 'agent', small(1));
    await attach(scene, made, 2, 'whole', large(12));
    const before = await look(scene, made);
    await merge(scene.store, made);
    expect(await look(scene, made)).toEqual(before);
    // A state that came with its step stays there as pruned, so that the step is the same for its writer.
    expect(await attachedRows(made)).toEqual(['1 agent']);
    await expectVerified(scene.store);
    await prune(scene, made, 2, ['whole']);
    await attach(scene, made, 2, 'whole', large(12));
    const again = await look(scene, made);
    await merge(scene.store, made);
    await merge(scene.store, made);
    expect(await look(scene, made)).toEqual(again);
    expect(await attachedRows(made)).toEqual(['1 agent']);
    await expectVerified(scene.store);
  });

  it('rows with attached states stay within their bounds', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const count = 60;
    await scene.append(
      made,
      Array.from({ length: count }, (_, i) => wordStep(BigInt(i), `${i}`, { reward: i })),
    );
    await merge(scene.store, made);
    for (let i = 0; i < count; i += 1)
      await attach(scene, made, i, 'later', newState(`${i} `.padEnd(4 * KIB - 1, 'x')));
    const before = await look(scene, made);
    await merge(scene.store, made);
    const rows = await rowsOf(made);
    expect(rows.map(([from]) => from)).toEqual([0, ...rows.slice(0, -1).map(([, to]) => to)]);
    for (const [, , body, states] of rows) expect(body! + states!).toBeLessThanOrEqual(64 * KIB);
    expect(await attachedRows(made)).toEqual([]);
    expect(await look(scene, made)).toEqual(before);
    await expectVerified(scene.store);
  });

  it('W10: attaches, prunes, appends and merges at the same time, also of two instances on Postgres, lose nothing', async () => {
    const other = on.engine === 'postgres' ? await openOn(on.database) : on.store;
    try {
      const scene = on.scene();
      const { made } = await createWith(scene, 2);
      let isWriting = true;
      const writing = (async () => {
        for (let i = 2; i < 40; i += 1) {
          await scene.append(made, [wordStep(BigInt(i), `${i}`)]);
          await attach(scene, made, i, 'later', i % 2 === 0 ? small(i) : large(i));
          if (i % 5 === 0) await attach(scene, made, i - 3, 'whole', small(i));
          if (i % 7 !== 0) continue;
          await prune(scene, made, i, ['later']);
          await attach(scene, made, i, 'later', i % 2 === 0 ? small(i) : large(i));
        }
      })().finally(() => {
        isWriting = false;
      });
      const merging = [scene.store, other].map(async (store) => {
        while (isWriting) await merge(store, made);
      });
      await Promise.all([writing, ...merging]);
      await merge(scene.store, made);
      const digests = (await scene.steps(made)).slice(2).map(({ step }) => step.states.map(({ digest }) => digest));
      const expected = Array.from({ length: 38 }, (_, i) => i + 2).map((i) => [
        (i % 2 === 0 ? small(i) : large(i)).digest,
        ...((i + 3) % 5 === 0 && i + 3 < 40 ? [small(i + 3).digest] : []),
      ]);
      expect(digests).toEqual(expected);
      expect(await attachedRows(made)).toEqual([]);
      await expectVerified(scene.store);
    } finally {
      if (other !== on.store) await other.close();
    }
  });

  it.each(['ReadStates', 'GetState'] as const)(
    'W10, S4: %s finds states that a merge moves meanwhile',
    async (call) => {
      const scene = on.scene();
      const { made } = await createWith(scene, 3);
      for (const number of [0, 1, 2]) await attach(scene, made, number, 'later', small(number));
      const { tree, key } = made.ref;
      const lineage = await scene.lineage(made);
      const read = async () => {
        if (call === 'GetState') {
          const place = { tree, owner: key, stepNumber: 1n };
          return [...(await scene.store.readSmallStates(scene.namespace, place, ['later'])).keys()];
        }
        const wanted = { name: 'later', from: 0n, limit: 9 };
        return (await scene.store.listStepStates(scene.namespace, tree, lineage, wanted)).map(
          ({ state }) => state.digest,
        );
      };
      const before = await read();
      expect(before.length).toBeGreaterThan(0);
      const found = await changeBefore(on.engine, /attached_states/, () => merge(scene.store, made), read);
      expect(await attachedRows(made)).toEqual([]);
      expect(found).toEqual(before);
    },
  );
});
