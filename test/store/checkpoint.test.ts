import { expect, it } from 'vitest';
import type { OwnedRange } from '../../src/domain/lineage.ts';
import type { NewState } from '../../src/domain/step.ts';
import { makeStep, newState, smallRef, stateRef } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { plansOf } from './postgres_plans.ts';
import type { Scene } from './scene.ts';
import { sqliteTextsByThread, sqliteTextsOf } from './statement_count.ts';

describeStore('checkpoints and the states of a lineage', (on) => {
  interface Told {
    readonly lineage: readonly OwnedRange[];
    readonly tree: bigint;
    readonly states: readonly NewState[];
  }

  /**
   * States at 0 (env), 2 (env, agent) and 3 (agent) of a root, and at 5 (env) of a branch at 3. The root has another
   * state at 4.
   */
  async function checkpoints(scene: Scene): Promise<Told> {
    const states = Array.from({ length: 6 }, (_, i) => newState(`state ${i}`));
    const at = (n: number, ...names: string[]) =>
      makeStep(BigInt(n), { states: names.map((name) => stateRef(states[n] as NewState, name)) });
    const root = await scene.create();
    await scene.append(root, [at(0, 'env'), at(1), at(2, 'agent', 'env'), at(3, 'agent'), at(4, 'env')], { states });
    const child = await scene.branch(root, 3n);
    await scene.append(child, [at(4), at(5, 'env')], { states });
    return { tree: root.ref.tree, lineage: await scene.lineage(child), states };
  }

  it('RD3: the latest checkpoint is the last step up to a number that has a state, or that has all named states', async () => {
    const scene = on.scene();
    const { tree, lineage } = await checkpoints(scene);
    const find = async (atOrBefore: bigint, ...names: string[]) =>
      (await scene.store.findCheckpoint(scene.namespace, tree, lineage, atOrBefore, names))?.step.stepNumber;
    expect(await find(2n ** 63n - 1n)).toBe(5n);
    expect(await find(5n)).toBe(5n);
    expect(await find(4n)).toBe(3n);
    expect(await find(4n, 'env')).toBe(2n);
    expect(await find(5n, 'agent')).toBe(3n);
    expect(await find(5n, 'env', 'agent')).toBe(2n);
    expect(await find(5n, 'agent', 'env')).toBe(2n);
    expect(await find(1n)).toBe(0n);
    expect(await find(1n, 'agent')).toBeUndefined();
    expect(await find(5n, 'ENV')).toBeUndefined();
    expect(await find(5n, 'env', 'other')).toBeUndefined();
  });

  it('RD3: the checkpoint is a complete step, with its owner', async () => {
    const scene = on.scene();
    const { tree, lineage, states } = await checkpoints(scene);
    const found = await scene.store.findCheckpoint(scene.namespace, tree, lineage, 4n, ['env']);
    expect(found?.owner.key).toBe(lineage[0]?.key);
    expect(found?.step.states).toEqual([
      stateRef(states[2] as NewState, 'agent'),
      stateRef(states[2] as NewState, 'env'),
    ]);
  });

  it('RD3: a trajectory without states has no checkpoint', async () => {
    const scene = on.scene();
    const made = await scene.createWith(['a']);
    const lineage = await scene.lineage(made);
    expect(await scene.store.findCheckpoint(scene.namespace, made.ref.tree, lineage, 9n, [])).toBeUndefined();
  });

  it('RD3: a state that few steps have is found by an index, whatever the other rows have and whatever was attached', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const [rare, usual] = [newState('rare'), newState('usual')];
    const step = (number: number) =>
      makeStep(BigInt(number), {
        states: number === 100 ? [smallRef(usual), smallRef(rare, 'rare')] : [smallRef(usual)],
      });
    // Each is a row of its own, also when it is merged.
    for (let at = 0; at < 20 * 200; at += 200) {
      await scene.append(
        made,
        Array.from({ length: 200 }, (_, i) => step(at + i)),
      );
    }
    for (let left = [{ ref: made.ref, rest: true }]; left.length > 0; ) left = await scene.store.mergeSteps(left);
    // Attaching moves the end of what is merged back.
    await scene.store.attachState(scene.caller, {
      trajectoryId: made.id,
      uid: undefined,
      writerEpoch: undefined,
      stepNumber: 300n,
      name: 'later',
      digest: rare.digest,
      mediaType: '',
      data: rare.data,
    });
    await scene.append(made, [step(4000)]);
    const branch = await scene.branch(made, 3900n);
    await scene.append(branch, [step(3901)]);
    // Postgres reads a whole table rather than an index if most rows are of one trajectory.
    for (let i = 0; i < 100; i += 1) await scene.append(await scene.create(), [step(0)]);
    const lineage = await scene.lineage(branch);
    const find = (...names: string[]) =>
      scene.store.findCheckpoint(scene.namespace, made.ref.tree, lineage, 2n ** 63n - 1n, names);
    await on.sql.rows('analyze');
    for (const [names, expected] of [
      [['rare'], 100n],
      [['env', 'rare'], 100n],
      [['rare', 'env'], 100n],
      [['later', 'env'], 300n],
      [['rare', 'later'], undefined],
      [['none'], undefined],
      [['env'], 3901n],
    ] as const) {
      const work = () => find(...names);
      expect((await work())?.step.stepNumber).toBe(expected);
      if (on.engine === 'postgres') {
        const read = (await plansOf(on.database, work)).flat().filter(({ table }) => table !== undefined);
        expect(read.reduce((sum, { rows }) => sum + rows, 0)).toBeLessThan(40);
      } else {
        const [text = ''] = (await sqliteTextsByThread(work)).reading;
        const plan = (await on.sql.rows(`explain query plan ${text}`)).map(({ detail }) => String(detail));
        expect(plan).toContain(
          'SEARCH n USING PRIMARY KEY (tree=? AND trajectory=? AND name=? AND first_step_number>? AND first_step_number<?)',
        );
        expect(plan).toContain(
          'SEARCH s USING INDEX segments_by_trajectory (tree=? AND trajectory=? AND first_step_number>? AND first_step_number<?)',
        );
      }
    }
  });

  it('S5: states that few steps have are listed by the index of names, whatever the other rows have', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const [rare, usual] = [newState('rare'), newState('usual')];
    const has = [100, 1500, 3000];
    for (let at = 0; at < 16 * 200; at += 200) {
      const names = (number: number) => (has.includes(number) ? ['rare'] : []);
      const steps = Array.from({ length: 200 }, (_, i) =>
        makeStep(BigInt(at + i), {
          states: [smallRef(usual), ...names(at + i).map((name) => smallRef(rare, name))],
        }),
      );
      await scene.append(made, steps);
      if (at === 2800) {
        for (let left = [{ ref: made.ref, rest: true }]; left.length > 0; ) left = await scene.store.mergeSteps(left);
      }
    }
    const lineage = await scene.lineage(made);
    const work = () =>
      scene.store.listStepStates(scene.namespace, made.ref.tree, lineage, { name: 'rare', from: 0n, limit: 10 });
    await on.sql.rows('analyze');
    expect((await work()).map(({ stepNumber }) => Number(stepNumber))).toEqual(has);
    if (on.engine === 'postgres') {
      const plans = await plansOf(on.database, work);
      for (const plan of plans) {
        const read = plan.filter(({ table }) => table !== undefined);
        expect(read.reduce((sum, { rows }) => sum + rows, 0)).toBeLessThan(20);
      }
    } else {
      const plans = (await sqliteTextsOf(work)).map((text) => on.sql.rows(`explain query plan ${text}`));
      const details = (await Promise.all(plans)).map((plan) => plan.map(({ detail }) => String(detail)));
      expect(details.length).toBeGreaterThan(3);
      for (const plan of details)
        expect(plan.join()).toMatch(/SEARCH n USING PRIMARY KEY \([^)]* AND name=\? AND first/u);
    }
  });

  it('S5: states of one name are listed in step order across branch points, from a given number, up to a limit', async () => {
    const scene = on.scene();
    const { tree, lineage, states } = await checkpoints(scene);
    const read = (name: string, from = 0n, limit = 100) =>
      scene.store.listStepStates(scene.namespace, tree, lineage, { name, from, limit });
    const env = await read('env');
    expect(env.map(({ stepNumber }) => stepNumber)).toEqual([0n, 2n, 5n]);
    expect(env.map(({ state }) => state)).toEqual([0, 2, 5].map((n) => stateRef(states[n] as NewState)));
    expect(env.map(({ owner }) => owner.key)).toEqual([lineage[0]?.key, lineage[0]?.key, lineage[1]?.key]);
    expect((await read('agent')).map(({ stepNumber }) => stepNumber)).toEqual([2n, 3n]);
    expect((await read('env', 1n)).map(({ stepNumber }) => stepNumber)).toEqual([2n, 5n]);
    expect((await read('env', 2n, 1)).map(({ stepNumber }) => stepNumber)).toEqual([2n]);
    expect((await read('env', 3n, 1)).map(({ stepNumber }) => stepNumber)).toEqual([5n]);
    expect(await read('env', 6n)).toEqual([]);
    expect(await read('Env')).toEqual([]);
  });

  it('S5: a page is full even if states are rare; only the last page is short', async () => {
    const scene = on.scene();
    const { tree, lineage } = await checkpoints(scene);
    const read = async (limit: number) =>
      (await scene.store.listStepStates(scene.namespace, tree, lineage, { name: 'env', from: 0n, limit })).map(
        (found) => found.stepNumber,
      );
    expect(await read(1)).toEqual([0n]);
    expect(await read(2)).toEqual([0n, 2n]);
    expect(await read(3)).toEqual([0n, 2n, 5n]);
    expect(await read(4)).toEqual([0n, 2n, 5n]);
  });
});
