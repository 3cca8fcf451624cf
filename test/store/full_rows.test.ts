import { expect, it } from 'vitest';
import type { Step } from '../../src/domain/step.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { SEGMENT_BYTES } from '../../src/store/contract/append.ts';
import { makeStep, newState, smallRef, stateRef, wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { putState } from './scene.ts';
import { statementsOf } from './statement_count.ts';
import { expectVerified } from './verified.ts';

const COMPRESSED = 2;

describeStore('full rows of a group', (on) => {
  const rowsOf = async ({ ref }: Trajectory) =>
    (
      await on.sql.rows(`select first_step_number, next_step_number, encoding, body_bytes from segments
        where tree = ${ref.tree} and trajectory = ${ref.key} order by first_step_number`)
    ).map(({ first_step_number, next_step_number, encoding, body_bytes }) => ({
      steps: Number(next_step_number) - Number(first_step_number),
      isCompressed: Number(encoding) === COMPRESSED && body_bytes !== null,
    }));
  const words = (from: number, count: number): Step[] =>
    Array.from({ length: count }, (_, i) => wordStep(BigInt(from + i), `word ${from + i}`, { reward: from + i }));
  const compressedSteps = (outcomes: readonly { readonly kind: string; readonly compressedSteps?: number }[]) =>
    outcomes.map((outcome) => outcome.compressedSteps ?? 0);

  it('are compressed before the commit, and are never written again', async () => {
    const scene = on.scene();
    const [large, light] = [await scene.create(), await scene.create()];
    const state = newState('small');
    const steps = words(0, 300).map((step) => ({ ...step, states: [smallRef(state, 'env')] }));
    const batches = [0, 100, 200].map((at) => scene.batch(large, steps.slice(at, at + 100)));
    const outcomes = await scene.store.append([...batches, scene.batch(light, words(0, 1))], 'bounded');
    expect(outcomes.map(({ kind }) => kind)).toEqual(Array.from({ length: 4 }, () => 'committed'));
    expect(compressedSteps(outcomes)).toEqual([100, 100, 56, 0]);
    const rows = [
      { steps: 256, isCompressed: true },
      { steps: 44, isCompressed: false },
    ];
    expect(await rowsOf(large)).toEqual(rows);
    expect(await rowsOf(light)).toEqual([{ steps: 1, isCompressed: false }]);
    expect(await scene.words(large)).toEqual(words(0, 300).map((_, i) => `word ${i}`));
    await expectVerified(scene.store);
    await scene.store.mergeSteps([{ ref: large.ref, rest: true }]);
    expect((await rowsOf(large)).map((row) => row.steps)).toEqual([256, 44]);
    await expectVerified(scene.store);
  });

  it('have the names of their states and their labels in the index, which takes no further statement on Postgres', async () => {
    const scene = on.scene();
    const [named, plain] = [await scene.createWith(['first']), await scene.createWith(['first'])];
    const states = [smallRef(newState('small'), 'env'), smallRef(newState('other'), 'agent')];
    const appendTo = (made: Trajectory, steps: readonly Step[]) =>
      statementsOf(on.engine, () => scene.append(made, [...steps]));
    const withNames = words(1, 256).map((step) => ({
      ...step,
      states,
      labels: new Map([['at', `${step.stepNumber % 2n}`]]),
    }));
    const counts = [await appendTo(plain, words(1, 256)), await appendTo(named, withNames)];
    if (on.engine === 'postgres') expect(counts).toEqual([1, 1]);
    const index = await on.sql.rows(
      `select name, first_step_number from segment_names where trajectory = ${named.ref.key} order by name`,
    );
    expect(index.map(({ name, first_step_number: first }) => [name, Number(first)])).toEqual([
      ['"agent"', 1],
      ['"env"', 1],
      ['["at","0"]', 1],
      ['["at","1"]', 1],
    ]);
    await expectVerified(scene.store);
  });

  it('a row is compressed from half of the steps or a quarter of the bytes of a full row on', async () => {
    const scene = on.scene();
    const made = await scene.create();
    await scene.append(made, words(0, 256 + 128));
    await scene.append(made, words(384, 127));
    await scene.append(made, [wordStep(511n, 'x'.repeat(SEGMENT_BYTES / 4))]);
    await scene.append(made, [wordStep(512n, 'x'.repeat(SEGMENT_BYTES / 4 - 100))]);
    const rows = [
      { steps: 256, isCompressed: true },
      { steps: 128, isCompressed: true },
      { steps: 127, isCompressed: false },
      { steps: 1, isCompressed: true },
      { steps: 1, isCompressed: false },
    ];
    expect(await rowsOf(made)).toEqual(rows);
    await scene.store.mergeSteps([{ ref: made.ref, rest: true }]);
    expect(await rowsOf(made)).toEqual(rows.map((row) => ({ ...row, isCompressed: true })));
    await expectVerified(scene.store);
  });

  it('W3: a group that is not stored as it came has the rows that were decided', async () => {
    const scene = on.scene();
    const [rejecting, repeating] = [await scene.create(), await scene.create()];
    await scene.append(repeating, words(0, 10));
    const wrong = scene.batch(rejecting, words(150, 150), { uid: repeating.id });
    const batches = [scene.batch(rejecting, words(0, 150)), wrong, scene.batch(repeating, words(0, 300))];
    const outcomes = await scene.store.append(batches, 'bounded');
    expect(outcomes.map(({ kind }) => kind)).toEqual(['committed', 'refused', 'committed']);
    expect(compressedSteps(outcomes)).toEqual([0, 0, 0]);
    expect(await rowsOf(rejecting)).toEqual([{ steps: 150, isCompressed: false }]);
    expect((await rowsOf(repeating)).map(({ steps }) => steps)).toEqual([10, 256, 34]);
    expect(await scene.words(repeating)).toEqual(words(0, 300).map((_, i) => `word ${i}`));
    await expectVerified(scene.store);
  });

  it('steps that name states by digest are left to merges, with the sizes of these states', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const state = newState('put before');
    await putState(scene.store, scene.namespace, state.data);
    const steps = Array.from({ length: 256 }, (_, i) => {
      return makeStep(BigInt(i), { states: [{ ...stateRef(state), size: 0 }] });
    });
    await scene.append(made, steps);
    expect(await rowsOf(made)).toEqual([{ steps: 256, isCompressed: false }]);
    expect((await scene.steps(made))[0]!.step.states[0]!.size).toBe(state.data.length);
  });
});
