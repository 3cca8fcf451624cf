import { expect, it } from 'vitest';
import type { Step } from '../../src/domain/step.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { StepSort } from '../../src/store/contract/step.ts';
import { makeStep, newState, stateRef, wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { refusalOf, type Scene } from './scene.ts';

const NUMBER = { by: 'NUMBER', descending: false } as const;

describeStore('stored segments', (on) => {
  const rowsOf = async (made: Trajectory) =>
    (
      await on.sql.rows(`select first_step_number, next_step_number from segments
        where tree = ${made.ref.tree} and trajectory = ${made.ref.key} order by first_step_number`)
    ).map((row) => [Number(row.first_step_number), Number(row.next_step_number)]);
  const words = (from: number, count: number, length = 1) =>
    Array.from({ length: count }, (_, i) => wordStep(BigInt(from + i), 'x'.repeat(length)));

  it('a group commit stores one row for each trajectory, whatever the number of its batches', async () => {
    const scene = on.scene();
    const [one, other] = [await scene.create(), await scene.create()];
    const batches = [
      scene.batch(one, words(0, 100)),
      scene.batch(other, words(0, 3)),
      scene.batch(one, words(100, 50)),
      scene.batch(one, words(120, 60)),
    ];
    await scene.store.append(batches, 'bounded');
    expect(await rowsOf(one)).toEqual([[0, 180]]);
    expect(await rowsOf(other)).toEqual([[0, 3]]);
  });

  it('a row has at most 256 steps of about 64 KiB, unless one step is larger', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const many = await scene.create();
    await scene.append(many, words(0, 600));
    expect(await rowsOf(many)).toEqual([
      [0, 256],
      [256, 512],
      [512, 600],
    ]);
    await scene.append(made, [...words(0, 20, 10_000), ...words(20, 1, 200_000), ...words(21, 2)]);
    expect(await rowsOf(made)).toEqual([
      [0, 6],
      [6, 12],
      [12, 18],
      [18, 20],
      [20, 21],
      [21, 23],
    ]);
    expect(await scene.words(made)).toHaveLength(23);
  });

  it('B2: a trim cuts the row that has the last branch point, and what is left reads as before', async () => {
    const scene = on.scene();
    const root = await scene.create();
    const steps = Array.from({ length: 20 }, (_, i) =>
      makeStep(BigInt(i), { reward: i % 3 === 0 ? i / 7 : undefined, truncated: i === 5 || i === 15 }),
    );
    await scene.append(root, steps);
    const branch = await scene.branch(root, 7n);
    const before = await scene.steps(branch);
    await scene.delete(root, 'KEEP_SHARED');
    expect(await rowsOf(root)).toEqual([[0, 8]]);
    expect(await scene.steps(branch)).toEqual(before);
    const rows = await on.sql.rows(
      `select step_number, truncated from steps where tree = ${root.ref.tree} order by step_number`,
    );
    expect(rows.map(({ truncated }) => Boolean(truncated))).toEqual(before.map(({ step }) => step.truncated));
    await scene.append(branch, [makeStep(8n, { reward: 1 })]);
    expect((await scene.get(branch.id)).rewardSum).toBe(0 + 3 / 7 + 6 / 7 + 1);
  });

  it('RD4, W11: lists compare every reward as the double that it is, however large', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const rewards = [2 ** 60, 1e17, -(2 ** 55), 2 ** 53 + 2, 1e300, Infinity, -Infinity, 0.1, 5e-324, -0];
    await scene.append(
      made,
      rewards.map((reward, i) => makeStep(BigInt(i), { reward })),
    );
    const of = { tree: made.ref.tree, lineage: await scene.lineage(made) };
    const page = { limit: 30, after: undefined, maxBytes: 1e6 };
    const list = async (filter: object, order: StepSort) =>
      (await scene.store.listSteps(scene.namespace, { of, ...filter }, order, page, 'FULL')).steps.map(
        ({ step }) => step.reward,
      );
    expect(await list({}, NUMBER)).toEqual(rewards);
    expect(await list({}, { by: 'REWARD', descending: true })).toEqual(rewards.toSorted((a, b) => b - a));
    for (const reward of rewards)
      expect(await list({ minReward: reward, maxReward: reward }, NUMBER)).toEqual([reward]);
  });

  it('W6, W10: a repeated step is compared as it was sent, without the states attached to it', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const [sent, attached] = [newState('sent'), newState('attached')];
    const step = makeStep(0n, { states: [stateRef(sent)] });
    await scene.append(made, [step, wordStep(1n, 'b')], { states: [sent] });
    await scene.store.attachState(scene.caller, {
      trajectoryId: made.id,
      uid: undefined,
      writerEpoch: undefined,
      stepNumber: 0n,
      name: 'agent',
      digest: attached.digest,
      mediaType: '',
      data: attached.data,
    });
    expect((await scene.steps(made))[0]?.step.states.map(({ name }) => name)).toEqual(['agent', 'env']);
    expect(await scene.append(made, [step])).toMatchObject({ duplicates: 1, nextStepNumber: 2n });
    const other = makeStep(0n, { states: [stateRef(sent), stateRef(attached, 'agent')] });
    expect((await refusalOf(scene.append(made, [other]))).reason).toBe('STEP_CONFLICT');
  });

  it.each(['a flipped byte', 'a lost byte', 'an exchanged row'])(
    'D5: %s is STEP_CORRUPT and names the steps; all others can be read',
    async (damage) => {
      const scene = on.scene();
      const made = await scene.create();
      for (let i = 0; i < 3; i += 1) await scene.append(made, words(i * 10, 10));
      const of = `tree = ${made.ref.tree} and first_step_number =`;
      const [row] = await on.sql.rows(`select body from segments where ${of} 10`);
      const body = Buffer.from(row!.body as Uint8Array);
      if (damage === 'a flipped byte') body[body.length >> 1]! ^= 1;
      const bytes = damage === 'a lost byte' ? body.subarray(1) : body;
      const literal = on.engine === 'sqlite' ? `x'${bytes.toString('hex')}'` : `'\\x${bytes.toString('hex')}'`;
      await on.sql.rows(
        damage === 'an exchanged row'
          ? `update segments set body = (select o.body from segments as o where ${of.replace('tree', 'o.tree').replace('first', 'o.first')} 20),
              checksum = (select o.checksum from segments as o where ${of.replace('tree', 'o.tree').replace('first', 'o.first')} 20) where ${of} 10`
          : `update segments set body = ${literal} where ${of} 10`,
      );
      const corrupt = { reason: 'STEP_CORRUPT', metadata: { first_step_number: '10', next_step_number: '20' } };
      const numbers = async (from: bigint) =>
        (await read(scene, made, from)).map(({ stepNumber }) => Number(stepNumber));
      expect(await numbers(0n)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
      expect(await numbers(20n)).toHaveLength(10);
      expect(await refusalOf(read(scene, made, 10n))).toMatchObject(corrupt);
      expect(await refusalOf(scene.append(made, [wordStep(15n, 'x')]))).toMatchObject(corrupt);
      const page = { limit: 30, after: undefined, maxBytes: 1e6 };
      const of30 = { tree: made.ref.tree, lineage: await scene.lineage(made) };
      expect(await refusalOf(scene.store.listSteps(scene.namespace, { of: of30 }, NUMBER, page, 'FULL'))).toMatchObject(
        corrupt,
      );
      expect(await scene.append(made, [wordStep(30n, 'end')])).toMatchObject({ nextStepNumber: 31n });
      const branch = await scene.branch(made, 14n);
      await scene.delete(made, 'KEEP_SHARED');
      expect((await refusalOf(scene.steps(branch))).reason).toBe('STEP_CORRUPT');
      await scene.delete(branch);
      expect(await rowsOf(made)).toEqual([]);
    },
  );

  async function read(scene: Scene, made: Trajectory, from: bigint): Promise<Step[]> {
    const range = { from, to: 30n, maxSteps: 30, maxBytes: 1e6 };
    const lineage = await scene.lineage(made);
    const steps = await scene.store.readSteps(scene.namespace, made.ref.tree, lineage, range, 'FULL');
    return steps.map(({ step }) => step);
  }
});
