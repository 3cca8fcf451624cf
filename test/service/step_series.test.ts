import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { expect, it } from 'vitest';
import {
  ReadStepSeriesRequestSchema,
  StepScope,
  type StepSeries,
  StepValue,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { readStepSeries } from '../../src/service/trajectory/series.ts';
import { putState, refusalOf } from '../store/scene.ts';
import { callOf } from '../support/parts_call.ts';
import { wrappedStore } from '../support/wrapped_store.ts';
import { type AppScene, all, describeApp, state, step } from './on_app.ts';

async function series(
  scene: AppScene,
  request: MessageInitShape<typeof ReadStepSeriesRequestSchema>,
): Promise<StepSeries[]> {
  const call = callOf(scene.app, scene.caller);
  const messages = await all(readStepSeries.messages(create(ReadStepSeriesRequestSchema, request), call));
  return messages.flatMap((message) => message.series);
}

/** The points of each series, as pairs. */
function points(found: readonly StepSeries[]): [number, number][][] {
  return found.map(({ stepNumbers, values }) => stepNumbers.map((number, i) => [Number(number), values[i]!]));
}

const pole = (angle: number) => ({ type: 'pole', callId: '', isError: false, content: json(`{"angle":${angle}}`) });
const json = (text: string) => ({ kind: 'json', json: text, mediaType: '' }) as const;

/** Step n has reward n, metric m = 10 n, the angle n / 10, and from step 2 on a state every second step. */
function rich(n: number, sign = 1) {
  return step(BigInt(n), `w${n}`, {
    reward: n === 3 ? undefined : sign * n,
    observations: [pole((sign * n) / 10)],
    metrics: new Map([['m', sign * 10 * n]]),
    infoJson: `{"n":${n}}`,
    states: n >= 2 && n % 2 === 0 ? [state(`[${sign * n}]`, { name: 'env' })] : [],
  });
}

async function tree(scene: AppScene) {
  const root = await scene.create();
  await scene.write(
    root,
    [0, 1, 2, 3, 4, 5].map((n) => rich(n)),
  );
  const branch = await scene.branch(root, 2n);
  await scene.write(
    branch,
    [3, 4].map((n) => rich(n, -1)),
  );
  return { root, branch, ids: [root.id, branch.id] };
}

describeApp('ReadStepSeries', (on) => {
  it.each([
    [
      StepValue.REWARD_SUM,
      {},
      [
        [3, 3],
        [4, 7],
        [5, 12],
      ],
      [
        [3, 3],
        [4, -1],
      ],
    ],
    [
      StepValue.REWARD,
      {},
      [
        [4, 4],
        [5, 5],
      ],
      [[4, -4]],
    ],
    [StepValue.REWARD_MEAN, { stretchSteps: 4n }, [[5, 4.5]], [[4, -4]]],
    [
      StepValue.METRIC,
      { metricKey: 'm' },
      [
        [3, 30],
        [4, 40],
        [5, 50],
      ],
      [
        [3, -30],
        [4, -40],
      ],
    ],
    [
      StepValue.OBSERVATION,
      { pointer: '/angle' },
      [
        [3, 0.3],
        [4, 0.4],
        [5, 0.5],
      ],
      [
        [3, -0.3],
        [4, -0.4],
      ],
    ],
    [
      StepValue.INFO,
      { pointer: '/n' },
      [
        [3, 3],
        [4, 4],
        [5, 5],
      ],
      [
        [3, 3],
        [4, 4],
      ],
    ],
    [StepValue.STATE, { pointer: '/0' }, [[4, 4]], [[4, -4]]],
    [StepValue.ACTION, {}, [], []],
  ] as const)('RD9: value %i with %o, of all trajectories of a tree', async (value, fields, root, branch) => {
    const scene = on.scene();
    const { ids } = await tree(scene);
    const request = { treeId: ids[1]!, value, ...fields, startStepNumber: 3n, steps: StepScope.OWN };
    const found = await series(scene, request);
    expect(found.map(({ trajectoryId }) => trajectoryId)).toEqual(ids);
    expect(points(found)).toEqual([root, branch]);
  });

  it('RD9: lineages include inherited steps, within a range; ids that do not exist are ignored', async () => {
    const scene = on.scene();
    const { ids } = await tree(scene);
    const request = { trajectoryIds: [...ids, crypto.randomUUID()], startStepNumber: 1n, endStepNumber: 4n };
    expect(points(await series(scene, request))).toEqual([
      [
        [1, 1],
        [2, 3],
        [3, 3],
      ],
      [
        [1, 1],
        [2, 3],
        [3, 3],
      ],
    ]);
    const states = { ...request, startStepNumber: 0n, value: StepValue.STATE, pointer: '/0' };
    expect(points(await series(scene, states))).toEqual([[[2, 2]], [[2, 2]]]);
    expect(await series(scene, { ...request, startStepNumber: 4n, endStepNumber: 4n })).toMatchObject([
      { stepNumbers: [], nextStepNumber: 6n },
      { stepNumbers: [], nextStepNumber: 5n },
    ]);
  });

  it('RD9: thousands of steps in many rows have the same extremes as a naive copy, with few points', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const rewards = Array.from({ length: 3000 }, (_, i) => ((i * 7919) % 1000) / 10);
    for (let at = 0; at < rewards.length; at += 500) {
      const some = rewards.slice(at, at + 500);
      await scene.write(
        made,
        some.map((reward, i) => step(BigInt(at + i), 'w', { reward })),
      );
    }
    const [found] = await series(scene, { trajectoryIds: [made.id], value: StepValue.REWARD, maxPoints: 100 });
    expect(found!.stepNumbers.length).toBeLessThanOrEqual(100);
    expect(found!.stretchSteps).toBe(128n);
    for (let at = 0; at < rewards.length; at += 128) {
      const stretch = rewards.slice(at, at + 128);
      const inside = found!.values.filter((_, i) => Number(found!.stepNumbers[i]! / 128n) === at / 128);
      expect([Math.min(...inside), Math.max(...inside)]).toEqual([Math.min(...stretch), Math.max(...stretch)]);
      expect([inside[0], inside.at(-1)]).toEqual([stretch[0], stretch.at(-1)]);
    }
  });

  it.each([
    { stretchSteps: 1n, reads: 2, points: 80 },
    { stretchSteps: 2n, reads: 3, points: 40 },
    { stretchSteps: 50n, reads: 2, points: 2 },
  ])('RD9: 80 states are read by $reads reads for stretches of $stretchSteps steps', async (expected) => {
    let reads = 0;
    const store = wrappedStore(on.store, {
      listStepStates: (...args) => {
        reads += 1;
        return on.store.listStepStates(...args);
      },
    });
    const app = on.app({}, store);
    const scene = on.scene(app);
    const made = await scene.create();
    const states = (n: number) => [state(`[${n}]`, { name: 'env' })];
    await scene.write(
      made,
      Array.from({ length: 80 }, (_, n) => step(BigInt(n), 'w', { states: states(n) })),
    );
    const { stretchSteps } = expected;
    const request = { trajectoryIds: [made.id], value: StepValue.STATE, pointer: '/0', maxPoints: 100, stretchSteps };
    const [found = []] = points(await series(scene, request));
    expect(found).toEqual(
      Array.from({ length: expected.points }, (_, at) => [at, at].map((n) => n * Number(stretchSteps))),
    );
    expect(reads).toBe(expected.reads);
    await app.close();
  });

  it('RD9: states are read at evenly spaced steps, of at most 1 MiB, and only those that are JSON', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const large = JSON.stringify({ x: 'y'.repeat(300_000), n: 7 });
    const texts = ['{"n":0}', 'no json', large, '{"n":3}', `"${'z'.repeat(400_000)}"`, '{"n":5}', '{}', '{"n":7}'];
    for (const [i, text] of texts.entries()) {
      await scene.write(made, [step(BigInt(i), 'w', { states: [state(text, { name: 'env' })] })]);
    }
    const request = { trajectoryIds: [made.id], value: StepValue.STATE, pointer: '/n' };
    expect(points(await series(scene, request))).toEqual([
      [
        [0, 0],
        [2, 7],
        [3, 3],
        [5, 5],
        [7, 7],
      ],
    ]);
    expect(points(await series(scene, { ...request, maxPoints: 4 }))).toEqual([
      [
        [0, 0],
        [2, 7],
      ],
    ]);
    expect(points(await series(scene, { ...request, stretchSteps: 5n }))).toEqual([
      [
        [0, 0],
        [5, 5],
      ],
    ]);
  });

  it('RD9: numbers of tensors are found by JSON Pointer, as those of JSON are', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const tensor = (type: string, shape: readonly number[], ...values: readonly number[]) => {
      const data = new Uint8Array(Float32Array.from(values).buffer);
      return { type, callId: '', isError: false, content: { kind: 'tensor', dtype: '<f4', shape, data } } as const;
    };
    const mediaType = 'application/vnd.anabranch.tensor;dtype=<f8;shape=2';
    const steps = [0, 1, 2].map((n) => {
      const env = state(Buffer.from(Float64Array.of(n, n / 2).buffer), { name: 'env', mediaType });
      const observations = [tensor('pos', [2, 1], n, n + 0.5), tensor('vel', [], -n)];
      return step(BigInt(n), 'w', { observations, states: [env] });
    });
    await scene.write(made, steps);
    const pointsAt = async (pointer: string, value = StepValue.OBSERVATION) => {
      const [found] = points(await series(scene, { trajectoryIds: [made.id], value, pointer }));
      return found!.map(([, number]) => number);
    };
    expect(await pointsAt('/pos/1/0')).toEqual([0.5, 1.5, 2.5]);
    expect(await pointsAt('/1/0')).toEqual([0.5, 1.5, 2.5]);
    expect(await pointsAt('/vel')).toEqual([-0, -1, -2]);
    expect(await pointsAt('/1', StepValue.STATE)).toEqual([0, 0.5, 1]);
    for (const none of ['/pos', '/pos/2/0', '/vel/0', '/other']) expect(await pointsAt(none)).toEqual([]);
  });

  it('RD9: the items of tensors of up to 4,096 numbers may be in states', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const contents = [];
    for (let n = 0; n < 70; n += 1) {
      // Every seventh state is that of an earlier step.
      const data = new Uint8Array(Float32Array.from({ length: 4096 }, (_, i) => (n % 7 === 0 ? 0 : n) + i).buffer);
      const digest = await putState(on.store, scene.caller.namespace, data);
      contents.push({ kind: 'tensor', dtype: '<f4', shape: [4096], digest } as const);
    }
    const observation = { type: '', callId: '', isError: false };
    await scene.write(
      made,
      contents.map((content, n) => step(BigInt(n), 'w', { observations: [{ ...observation, content }] })),
    );
    const request = { trajectoryIds: [made.id], value: StepValue.OBSERVATION, maxPoints: 100 };
    const [last] = points(await series(scene, { ...request, pointer: '/4095' }));
    expect(last).toEqual(contents.map((_, n) => [n, (n % 7 === 0 ? 0 : n) + 4095]));
    expect(points(await series(scene, { ...request, pointer: '/4096' }))).toEqual([[]]);
  });

  it('RD9: fields that do not belong to the value, and pointers that are none, are refused', async () => {
    const scene = on.scene();
    const { root } = await tree(scene);
    const refused = async (request: MessageInitShape<typeof ReadStepSeriesRequestSchema>) => {
      const { reason, violations } = await refusalOf(series(scene, { trajectoryIds: [root.id], ...request }));
      return [reason, violations[0]?.field];
    };
    expect(await refused({ value: StepValue.METRIC })).toEqual(['INVALID_REQUEST', 'metric_key']);
    expect(await refused({ metricKey: 'm' })).toEqual(['INVALID_REQUEST', 'metric_key']);
    expect(await refused({ pointer: '/a' })).toEqual(['INVALID_REQUEST', 'pointer']);
    expect(await refused({ value: StepValue.INFO, pointer: 'a' })).toEqual(['INVALID_REQUEST', 'pointer']);
    expect(await refused({ value: StepValue.INFO, stateName: 'env' })).toEqual(['INVALID_REQUEST', 'state_name']);
    expect(await refused({ startStepNumber: 2n, endStepNumber: 1n })).toEqual(['INVALID_REQUEST', 'end_step_number']);
  });
});
