import { beforeAll, expect, it } from 'vitest';
import { StepOrder } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { App } from '../../src/stream/app.ts';
import { makeDeepTree, turnsDuring } from '../store/deep_tree.ts';
import { refusalOf } from '../store/scene.ts';
import { outsideSql } from '../store/sql.ts';
import { mostParametersOf, statementsOf } from '../store/statement_count.ts';
import { dose } from '../support/dose.ts';
import { type AppScene, all, describeApp } from './on_app.ts';
import { servicesOf } from './services.ts';

/** The large dose is deeper than branches may be: trees from before there was a limit can still be read. */
const DEPTH = dose(3_000, 12_500);
const PIECES = Math.ceil(DEPTH / 1000);

/** The reward of the step at depth `i`: unsorted, some equal, some missing. */
const rewardOf = (i: number) => (i % 10 === 0 ? undefined : (i * 7919) % 20011);

describeApp('a tree with thousands of nested branches', (on) => {
  let scene: AppScene;
  let root: Trajectory;
  let leaf: Trajectory;
  let idOf: (depth: number) => string;
  beforeAll(async () => {
    scene = on.scene();
    root = await scene.createWith(['a']);
    const sql = await outsideSql(on.database);
    ({ idOf } = await makeDeepTree(on.engine, sql, root, DEPTH, rewardOf));
    await sql.close();
    leaf = await scene.now({ id: idOf(DEPTH) });
  });

  /** Another server, without any cache yet. */
  const cold = async <T>(use: (app: App) => Promise<T>): Promise<T> => {
    const app = on.app();
    try {
      return await use(app);
    } finally {
      await app.close();
    }
  };
  const rpc = (app: App) => servicesOf(app, scene.caller);
  const stepOf = (app: App, depth: number) => rpc(app).getStep({ trajectoryId: leaf.id, stepNumber: BigInt(depth) });
  const twinsOf = (depth: number) => {
    const range = { startStepNumber: 0n, endStepNumber: 10n };
    return { trajectoryId: idOf(depth), otherTrajectoryId: idOf(depth - 1_500), ...range };
  };
  const list = (app: App, order: StepOrder, descending: boolean, pageSize: number, pageToken = '', id = leaf.id) =>
    rpc(app).listSteps({ trajectoryId: id, order, descending, pageSize, pageToken });

  it('B1: GetStep reads no more ancestors than are between the leaf and the owner of the step', () =>
    cold(async (app) => {
      expect(await stepOf(app, DEPTH)).toMatchObject({ trajectoryId: leaf.id, step: { stepNumber: BigInt(DEPTH) } });
      const own = await statementsOf(on.engine, () => stepOf(app, DEPTH));
      expect(await statementsOf(on.engine, () => stepOf(app, DEPTH - 500)), 'one more, for 500 ancestors').toBe(
        own + 1,
      );
      expect(await statementsOf(on.engine, () => stepOf(app, DEPTH - 499)), 'none, since they are known').toBe(own);
      expect(await stepOf(app, DEPTH - 500)).toMatchObject({ trajectoryId: idOf(DEPTH - 500) });
      expect(await stepOf(app, 0)).toMatchObject({ trajectoryId: root.id, step: { stepNumber: 0n } });
    }));

  it('RD1: ReadSteps reads the last steps, and all steps, with other work in between', () =>
    cold(async (app) => {
      const reading = on.scene(app, scene.caller.namespace);
      const last = await all(reading.read(leaf, { startStepNumber: BigInt(DEPTH - 2) }));
      expect(last.map(({ trajectoryId }) => trajectoryId)).toEqual([DEPTH - 2, DEPTH - 1, DEPTH].map(idOf));
      let steps: readonly { readonly stepNumber: bigint }[] = [];
      const turns = await turnsDuring(async () => {
        steps = await reading.steps(leaf);
      });
      expect(steps.map(({ stepNumber }) => stepNumber)).toEqual(Array.from({ length: DEPTH + 1 }, (_, i) => BigInt(i)));
      expect(turns).toBeGreaterThanOrEqual(PIECES - 1);
    }));

  it.each([false, true])(
    'RD4: ListSteps by number reads the whole lineage page by page (descending: %s)',
    (descending) =>
      cold(async (app) => {
        const numbers: number[] = [];
        let pageToken = '';
        do {
          const page = await list(app, StepOrder.NUMBER, descending, 1000, pageToken);
          numbers.push(...page.steps.map(({ step }) => Number(step?.stepNumber)));
          pageToken = page.nextPageToken;
        } while (pageToken !== '');
        const expected = Array.from({ length: DEPTH + 1 }, (_, i) => i);
        expect(numbers).toEqual(descending ? expected.reverse() : expected);
      }),
  );

  it('RD4: ListSteps finds rare matches with a thousand owners per statement', () =>
    cold(async (app) => {
      const rare = () => rpc(app).listSteps({ trajectoryId: leaf.id, minReward: 19_990 });
      const expected = Array.from({ length: DEPTH + 1 }, (_, i) => i).filter(
        (i) => (rewardOf(i) ?? 0) >= 19_990 && i > 0,
      );
      expect(expected.length).toBeGreaterThan(0);
      expect((await rare()).steps.map(({ step }) => Number(step?.stepNumber))).toEqual(expected);
      expect(await turnsDuring(rare)).toBeGreaterThanOrEqual(PIECES - 1);
    }));

  it.each([
    ['REWARD', false],
    ['REWARD', true],
    ['TIME', false],
    ['TIME', true],
  ] as const)('RD4, W11: ListSteps by %s is in order over all owners (descending: %s)', (by, descending) =>
    cold(async (app) => {
      const sign = descending ? -1 : 1;
      // Step 0 has no reward. All steps except step 0 were committed together.
      const rewards = Array.from({ length: DEPTH + 1 }, (_, i) => (i === 0 ? undefined : rewardOf(i)));
      const expected = rewards
        .map((reward, i) => ({ reward: by === 'REWARD' ? reward : 0, i }))
        .sort((a, b) => {
          if (a.reward !== undefined && b.reward !== undefined) return sign * (a.reward - b.reward || a.i - b.i);
          return Number(a.reward === undefined) - Number(b.reward === undefined) || sign * (a.i - b.i);
        })
        .map(({ i }) => i);
      const first = await list(app, StepOrder[by], descending, 700);
      const second = await list(app, StepOrder[by], descending, 700, first.nextPageToken);
      const numbers = [...first.steps, ...second.steps].map(({ step }) => Number(step?.stepNumber));
      expect(numbers).toEqual(expected.slice(0, 1400));
      expect(await turnsDuring(() => list(app, StepOrder[by], descending, 5))).toBeGreaterThanOrEqual(PIECES - 1);
    }),
  );

  it('B1: GetLineage returns every owner, from the root on', () =>
    cold(async (app) => {
      const found: [string, string, bigint, bigint][] = [];
      let pageToken = '';
      do {
        const page = await rpc(app).getLineage({ trajectoryId: leaf.id, pageSize: 1000, pageToken });
        for (const { trajectoryId, name, startStepNumber, endStepNumber } of page.segments)
          found.push([trajectoryId, name, startStepNumber, endStepNumber]);
        pageToken = page.nextPageToken;
      } while (pageToken !== '');
      const branches = Array.from({ length: DEPTH }, (_, i) => [
        idOf(i + 1),
        `depth ${i + 1}`,
        BigInt(i + 1),
        BigInt(i + 2),
      ]);
      expect(found).toEqual([[root.id, '', 0n, 1n], ...branches]);
    }));

  it('RD4: GetTree lists the tree', () =>
    cold(async (app) => {
      const first = await rpc(app).getTree({ trajectoryId: leaf.id, pageSize: 2 });
      expect(first.nodes.map(({ trajectory }) => trajectory?.id)).toEqual([root.id, idOf(1)]);
      expect(first.nextPageToken).not.toBe('');
    }));

  it('RD3: GetCheckpoint searches the whole lineage, with few statements and other work in between', () =>
    cold(async (app) => {
      const checkpoint = () => refusalOf(rpc(app).getCheckpoint({ trajectoryId: leaf.id }));
      expect(await turnsDuring(checkpoint)).toBeGreaterThanOrEqual(PIECES - 1);
      expect((await checkpoint()).reason).toBe('CHECKPOINT_NOT_FOUND');
      expect(await statementsOf(on.engine, checkpoint)).toBeLessThan(PIECES + 10);
    }));

  it('RD5: CompareTrajectories returns how many steps two leaves share', () =>
    cold(async (app) => {
      const compared = await rpc(app).compareTrajectories({
        trajectoryId: leaf.id,
        otherTrajectoryId: idOf(DEPTH - 700),
      });
      expect(compared).toMatchObject({ sharedSteps: BigInt(DEPTH - 699) });
    }));

  it.each<[string, (app: App, leafDepth: number) => Promise<unknown>]>([
    ['ListSteps by reward', (app, depth) => list(app, StepOrder.REWARD, true, 5, '', idOf(depth))],
    ['ListSteps by time', (app, depth) => list(app, StepOrder.TIME, true, 5, '', idOf(depth))],
    ['ListSteps by number', (app, depth) => list(app, StepOrder.NUMBER, false, 50, '', idOf(depth))],
    ['GetStep of the root', (app, depth) => rpc(app).getStep({ trajectoryId: idOf(depth), stepNumber: 0n })],
    ['ReadSteps', (app, depth) => on.scene(app, scene.caller.namespace).steps({ id: idOf(depth) })],
    ['GetTree', (app, depth) => rpc(app).getTree({ trajectoryId: idOf(depth) })],
    ['GetLineage', (app, depth) => rpc(app).getLineage({ trajectoryId: idOf(depth) })],
    ['GetCheckpoint', (app, depth) => refusalOf(rpc(app).getCheckpoint({ trajectoryId: idOf(depth) }))],
    ['CompareTrajectories', (app, depth) => rpc(app).compareTrajectories(twinsOf(depth))],
  ])('RD4: %s has as many parameters per statement in a deeper tree', async (_rpc, call) => {
    const most = (depth: number) => mostParametersOf(on.engine, () => cold((app) => call(app, depth)));
    const shallow = await most(2_000);
    expect(shallow).toBeGreaterThan(0);
    expect(await most(DEPTH)).toBe(shallow);
  });
});
