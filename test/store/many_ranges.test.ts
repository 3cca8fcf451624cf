import { expect, it } from 'vitest';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { EncodedSteps, StepView, TrajectoryRange } from '../../src/store/contract/step.ts';
import { decodedSteps } from '../support/encoded_steps.ts';
import { makeStep, newState, stateRef } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import type { Scene } from './scene.ts';
import { statementsOfWarm } from './statement_count.ts';

describeStore('reading ranges of many trajectories', (on) => {
  const state = newState('state');

  async function append(
    scene: Scene,
    made: Trajectory,
    from: number,
    count: number,
    each = false,
  ): Promise<Trajectory> {
    const steps = Array.from({ length: count }, (_, i) =>
      makeStep(BigInt(from + i), {
        reward: i,
        infoJson: `"${made.id} ${from + i}"`,
        states: i % 3 === 0 ? [stateRef(state)] : [],
      }),
    );
    for (const batch of each ? steps.map((step) => [step]) : [steps]) {
      await scene.append(made, batch, { states: [state] });
    }
    return scene.get(made.id);
  }

  /** Two trees with branches of branches, steps in rows of one and of many steps, merged ones, and attached states. */
  async function createTrees(scene: Scene): Promise<Trajectory[]> {
    const all: Trajectory[] = [];
    for (const each of [true, false]) {
      const root = await append(scene, await scene.create(), 0, 12, each);
      const one = await append(scene, await scene.branch(root, 5n), 6, 10, each);
      const other = await append(scene, await scene.branch(root, 8n), 9, 1, each);
      const leaf = await append(scene, await scene.branch(one, 9n), 10, 7, !each);
      const empty = await scene.branch(leaf, 12n);
      all.push(root, one, other, leaf, empty);
      for (const [made, stepNumber] of [
        [root, 4n],
        [one, 7n],
        [leaf, 10n],
      ] as const) {
        const place = { trajectoryId: made.id, uid: undefined, writerEpoch: undefined, stepNumber };
        await scene.store.attachState(scene.caller, {
          ...place,
          name: 'later',
          mediaType: '',
          ...newState('attached'),
        });
      }
      for (let left = [{ ref: one.ref, rest: true }]; left.length > 0; ) left = await scene.store.mergeSteps(left);
    }
    return all;
  }

  const shown = (parts: readonly EncodedSteps[]) =>
    parts.flatMap((part) => decodedSteps(part).map((step) => ({ owner: part.owner, step })));

  async function readOne(scene: Scene, { trajectory, from, to }: TrajectoryRange, view: StepView) {
    const range = { from, to, maxSteps: 1000, maxBytes: 1e6 };
    const lineage = await scene.lineage(trajectory);
    return shown(await scene.store.readEncodedSteps(scene.namespace, trajectory.ref.tree, lineage, range, view));
  }

  it('RD6: returns what reading each of them returns: own steps, inherited ones, and parts of both', async () => {
    const scene = on.scene();
    const trees = await createTrees(scene);
    for (const view of ['FULL', 'BASIC'] as const) {
      for (const [begin, end] of [
        [0, 99],
        [3, 99],
        [7, 11],
        [9, 10],
        [12, 14],
        [16, 99],
      ] as const) {
        const ranges = trees.map((trajectory): TrajectoryRange => {
          const to = BigInt(end) < trajectory.nextStepNumber ? BigInt(end) : trajectory.nextStepNumber;
          return { trajectory, from: BigInt(begin), to };
        });
        const found = await scene.store.readEncodedRanges(scene.namespace, ranges, view);
        expect(found).toHaveLength(ranges.length);
        for (const [i, range] of ranges.entries()) {
          expect(shown(found[i]!)).toEqual(await readOne(scene, range, view));
        }
      }
    }
  });

  it('RD6: takes one statement, and a second one if steps are inherited', async () => {
    const scene = on.scene();
    const trees = await createTrees(scene);
    const ranges = trees.map((trajectory) => ({ trajectory, from: 0n, to: trajectory.nextStepNumber }));
    const read = (some: readonly TrajectoryRange[]) => () =>
      scene.store.readEncodedRanges(scene.namespace, some, 'FULL');
    expect(await statementsOfWarm(on.engine, read(ranges))).toBe(2);
    const roots = ranges.filter(({ trajectory }) => trajectory.parent === undefined);
    expect(await statementsOfWarm(on.engine, read(roots))).toBe(1);
  });

  it('RD1, RD6: the steps of a trajectory that was deleted or is damaged end early, and the others are complete', async () => {
    const scene = on.scene();
    const [deleted, damaged, kept] = [
      await append(scene, await scene.create(), 0, 4),
      await append(scene, await scene.create(), 0, 4, true),
      await append(scene, await scene.create(), 0, 4),
    ];
    const leaf = await append(scene, await scene.branch(kept, 2n), 3, 2);
    await scene.delete(deleted);
    await on.sql.rows(
      `update segments set checksum = checksum + 1 where trajectory = ${damaged.ref.key} and first_step_number = 2
        returning 1 as n`,
    );
    const all = [deleted, damaged, kept, leaf];
    const ranges = all.map((trajectory) => ({ trajectory, from: 0n, to: trajectory.nextStepNumber }));
    const found = await scene.store.readEncodedRanges(scene.namespace, ranges, 'FULL');
    expect(found.map((parts) => shown(parts).length)).toEqual([0, 2, 4, 5]);
    await scene.delete(leaf);
    const later = await scene.store.readEncodedRanges(scene.namespace, ranges.slice(2), 'FULL');
    expect(later.map((parts) => shown(parts).length)).toEqual([4, 3]);
    const elsewhere = await scene.store.readEncodedRanges(on.scene().namespace, ranges, 'FULL');
    expect(elsewhere.flat()).toEqual([]);
  });

  it('B1, RD6: a trajectory with more than 64 ancestors is left to be read alone', async () => {
    const scene = on.scene();
    let made = await append(scene, await scene.create(), 0, 1);
    const lengths: number[] = [];
    for (let depth = 1; depth <= 66; depth += 1) {
      made = await append(scene, await scene.branch(made, BigInt(depth - 1)), depth, 1);
      const range = { trajectory: made, from: 0n, to: made.nextStepNumber };
      if (depth < 64) continue;
      const [parts] = await scene.store.readEncodedRanges(scene.namespace, [range], 'BASIC');
      lengths.push(shown(parts!).length);
    }
    expect(lengths).toEqual([65, 0, 0]);
  });
});
