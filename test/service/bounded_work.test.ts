import { syncBuiltinESMExports } from 'node:module';
import zlib from 'node:zlib';
import { beforeAll, expect, it, vi } from 'vitest';
import { StepOrder } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { Scene } from '../store/scene.ts';
import { statementsOfWarm } from '../store/statement_count.ts';
import { makeStep, newState, smallRef } from '../support/steps.ts';
import { type AppScene, describeApp } from './on_app.ts';

/** Steps that are merged, and steps that each have a row of their own. */
const MERGED = 600;
const SINGLE = 400;

/**
 * What a call costs does not depend on the length of a trajectory, the number of its rows, or what has happened to it.
 */
describeApp('the work of a call', (on) => {
  let app: AppScene;
  let scene: Scene;
  /** Three steps in three rows. */
  let short: Trajectory;
  /** A thousand steps in some large and some hundred small rows, with branches, deleted ones and attached states. */
  let long: Trajectory;

  const stepAt = (number: number) =>
    makeStep(BigInt(number), {
      reward: number % 5,
      infoJson: `{"at": ${number}}`,
      labels: new Map([['at', `${number}`]]),
      states: number % 100 === 1 ? [smallRef(newState(`state ${number}`))] : [],
    });
  const steps = (from: number, to: number) => Array.from({ length: to - from }, (_, i) => stepAt(from + i));

  beforeAll(async () => {
    app = on.scene();
    scene = new Scene(on.store, app.caller.namespace);
    short = await scene.create();
    for (const step of steps(0, 3)) await scene.append(short, [step]);
    long = await scene.create();
    for (let at = 0; at < MERGED; at += 60) await scene.append(long, steps(at, at + 60));
    for (let left = [{ ref: long.ref, rest: true }]; left.length > 0; ) left = await scene.store.mergeSteps(left);
    for (const step of steps(MERGED, MERGED + SINGLE)) await scene.append(long, [step]);
    for (const number of [5, 350, 650, 900]) {
      const { digest, data } = newState(`attached ${number}`);
      await scene.store.attachState(scene.caller, {
        trajectoryId: long.id,
        uid: undefined,
        writerEpoch: undefined,
        stepNumber: BigInt(number),
        name: 'later',
        digest,
        mediaType: '',
        data,
      });
    }
    for (let i = 0; i < 20; i += 1) {
      const branch = await scene.branch(long, BigInt(i * 40));
      await scene.append(branch, [stepAt(i * 40 + 1)]);
      if (i % 2 === 0) await scene.delete(branch);
    }
    await scene.store.setTag(scene.namespace, long.id, 'best', 700n, undefined);
    [short, long] = [await scene.get(short.id), await scene.get(long.id)];
  });

  const statementsOf = (work: () => Promise<unknown>) => statementsOfWarm(on.engine, work);

  /** Returns the first step numbers of the rows whose steps are opened: their checksums are compared. */
  async function rowsOpened(work: () => Promise<unknown>): Promise<ReadonlySet<number>> {
    const spy = vi.spyOn(zlib, 'crc32');
    syncBuiltinESMExports();
    try {
      await work();
      return new Set(spy.mock.calls.map(([, first]) => Number(first)));
    } finally {
      spy.mockRestore();
      syncBuiltinESMExports();
    }
  }

  it('W7: an append takes the same statements', async () => {
    const next = { [short.id]: Number(short.nextStepNumber), [long.id]: Number(long.nextStepNumber) };
    const append = (to: Trajectory) => () => {
      const from = next[to.id]!;
      next[to.id] = from + 10;
      return scene.append(to, steps(from, from + 10));
    };
    const cost = await statementsOf(append(short));
    expect(cost).toBeGreaterThan(0);
    expect(await statementsOf(append(long))).toBe(cost);
  });

  it('RD1: a page takes the same statements, whatever rows it consists of', async () => {
    const page = async (of: Trajectory, from: number, count: number) => {
      const lineage = await scene.lineage(of);
      const range = { from: BigInt(from), to: BigInt(from + count), maxSteps: count, maxBytes: 1e6 };
      return statementsOf(async () => {
        const found = await scene.store.readSteps(scene.namespace, of.ref.tree, lineage, range, 'FULL');
        expect(found).toHaveLength(count);
      });
    };
    expect(await page(short, 0, 3)).toBe(1);
    for (const from of [10, MERGED - 50, MERGED + 50]) expect(await page(long, from, 100)).toBe(1);
  });

  it('O2: a branch takes the same statements', async () => {
    const cost = await statementsOf(() => scene.branch(short, 1n));
    for (const at of [1n, 300n, 700n]) expect(await statementsOf(() => scene.branch(long, at))).toBe(cost);
  });

  it('RD1: GetStep takes the same statements, and opens one row', async () => {
    const get = (of: Trajectory, number: number) => () =>
      app.rpc.getStep({ trajectoryId: of.id, stepNumber: BigInt(number) });
    const cost = await statementsOf(get(short, 1));
    for (const number of [0, 350, 700, 999]) {
      expect(await statementsOf(get(long, number))).toBe(cost);
      expect((await rowsOpened(get(long, number))).size).toBe(1);
    }
  });

  it('RD3: GetCheckpoint takes the same statements, and opens one row', async () => {
    const get = (of: Trajectory, atOrBefore: number) => () =>
      app.rpc.getCheckpoint({ trajectoryId: of.id, atOrBefore: BigInt(atOrBefore), stateNames: ['env'] });
    const cost = await statementsOf(get(short, 2));
    for (const [number, checkpoint] of [
      [99, 1],
      [499, 401],
      [899, 801],
    ] as const) {
      expect((await get(long, number)()).step?.stepNumber).toBe(BigInt(checkpoint));
      expect(await statementsOf(get(long, number))).toBe(cost);
      expect((await rowsOpened(get(long, number))).size).toBe(1);
    }
  });

  it('RD4: a list of the steps with a label that few have takes the same statements, and opens one row', async () => {
    const list = (of: Trajectory, number: number) => () =>
      app.rpc.listSteps({ trajectoryId: of.id, labels: { at: `${number}` }, order: StepOrder.TIME });
    const cost = await statementsOf(list(short, 1));
    for (const number of [0, 350, 700, 950]) {
      expect((await list(long, number)()).steps.map(({ step }) => step?.stepNumber)).toEqual([BigInt(number)]);
      expect(await statementsOf(list(long, number))).toBe(cost);
      expect((await rowsOpened(list(long, number))).size).toBe(1);
    }
  });

  it('W6: a repeated step takes the same statements, and opens one row', async () => {
    const repeat = (of: Trajectory, number: number) => () => scene.append(of, [stepAt(number)]);
    const cost = await statementsOf(repeat(short, 1));
    for (const number of [2, 350, 702, 998]) {
      expect(await repeat(long, number)()).toMatchObject({ duplicates: 1 });
      expect(await statementsOf(repeat(long, number))).toBe(cost);
      expect((await rowsOpened(repeat(long, number))).size).toBe(1);
    }
  });
});
