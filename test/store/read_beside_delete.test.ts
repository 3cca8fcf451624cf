import { expect, it } from 'vitest';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { OwnedStep, StepSort } from '../../src/store/contract/step.ts';
import { makeStep, newState, stateRef } from '../support/steps.ts';
import { changeBefore } from './change_before.ts';
import { describeStore } from './on_store.ts';
import type { Scene } from './scene.ts';
import { statementsOf } from './statement_count.ts';

const NUMBER: StepSort = { by: 'NUMBER', descending: false };
const REWARD: StepSort = { by: 'REWARD', descending: true };

/**
 * A read of several statements sees several states of the database. Whatever is deleted in between, no step may lack
 * its states.
 */
describeStore('reads concurrent with a delete', (on) => {
  it('RD1: a page is read by one statement, so that no step lacks its states', async () => {
    const scene = on.scene();
    const root = await createWithStates(scene, 4);
    const leaf = await scene.branch(root, 2n);
    await appendStates(scene, leaf, 3, 3);
    const lineage = await scene.lineage(leaf);
    const range = { from: 1n, to: 6n, maxSteps: 10, maxBytes: 1e6 };
    const read = () => scene.store.readSteps(scene.namespace, leaf.ref.tree, lineage, range, 'FULL');
    await read();
    expect(await statementsOf(on.engine, async () => expect(statesOf(await read())).toEqual([1, 2, 3, 4, 5]))).toBe(1);
    await scene.delete(leaf);
    expect(statesOf(await read())).toEqual([1, 2]);
  });

  it('RD1: a single step or latest checkpoint that is deleted before its states are read is not found', async () => {
    const scene = on.scene();
    for (const read of [
      (made: Trajectory, lineage: Awaited<ReturnType<Scene['lineage']>>) =>
        scene.store.readSteps(
          scene.namespace,
          made.ref.tree,
          lineage,
          { from: 1n, to: 2n, maxSteps: 1, maxBytes: 1 },
          'FULL',
        ),
      async (made: Trajectory, lineage: Awaited<ReturnType<Scene['lineage']>>) => {
        const found = await scene.store.findCheckpoint(scene.namespace, made.ref.tree, lineage, 2n, []);
        return found === undefined ? [] : [found];
      },
    ]) {
      const made = await createWithStates(scene, 3);
      const lineage = await scene.lineage(made);
      expect(statesOf(await read(made, lineage))).toHaveLength(1);
      expect(
        await changeBefore(
          on.engine,
          /hex|encode/,
          () => scene.delete(made),
          () => read(made, lineage),
        ),
      ).toEqual([]);
    }
  });

  it.each([
    ['number', NUMBER],
    ['reward', REWARD],
  ])(
    'RD4: a list by %s contains no step without its states: deleted steps are replaced by the next ones',
    async (_name, order) => {
      const scene = on.scene();
      const [deleted, kept] = [await createWithStates(scene, 3), await createWithStates(scene, 3)];
      const page = { limit: 4, after: undefined, maxBytes: 1e6 };
      const list = async () =>
        (await scene.store.listSteps(scene.namespace, { of: { taskId: 'task' } }, order, page, 'FULL')).steps;
      expect(statesOf(await list())).toHaveLength(4);
      const found = await changeBefore(on.engine, /attached_states/, () => scene.delete(deleted), list);
      expect(found.map(({ owner }) => owner.id)).toEqual([kept.id, kept.id, kept.id]);
      expect(statesOf(found).toSorted()).toEqual([0, 1, 2]);
    },
  );
});

async function createWithStates(scene: Scene, count: number): Promise<Trajectory> {
  const made = await scene.create({ taskId: 'task' });
  await appendStates(scene, made, 0, count);
  return made;
}

/** Each step has a state of its own, named by the step's number. */
async function appendStates(scene: Scene, made: Trajectory, from: number, count: number): Promise<void> {
  const states = Array.from({ length: count }, (_, i) => newState(`${made.id} ${from + i}`));
  const steps = states.map((state, i) =>
    makeStep(BigInt(from + i), { reward: i, states: [stateRef(state, `${from + i}`)] }),
  );
  await scene.append(made, steps, { states });
}

/** The numbers of the steps. Checks that each has its own state. */
function statesOf(steps: readonly OwnedStep[]): number[] {
  return steps.map(({ step }) => {
    expect(step.states.map(({ name }) => name)).toEqual([`${step.stepNumber}`]);
    return Number(step.stepNumber);
  });
}
