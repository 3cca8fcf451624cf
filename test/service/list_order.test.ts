import { expect, it } from 'vitest';
import { ListOrder } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { refusalOf } from '../store/scene.ts';
import { type AppScene, describeApp, step } from './on_app.ts';
import { collect } from './services.ts';

const ORDERS = [ListOrder.CREATE_TIME, ListOrder.UPDATE_TIME, ListOrder.NAME, ListOrder.REWARD];
const REWARDS = [1, undefined, Number.POSITIVE_INFINITY, -2, 1, Number.NEGATIVE_INFINITY, 0.5];
const NAMES = ['b', 'B', 'ä', '', 'a', 'b', 'Zoo'];

interface Listed {
  readonly id: string;
  readonly name: string;
  readonly reward: number;
  readonly updated: bigint;
}

/** What the order compares. NaN, also for no reward, is last in both directions. */
function expected(all: readonly Listed[], order: ListOrder, ascending: boolean): string[] {
  const bytes = ({ name }: Listed) => Buffer.from(name);
  const compare = (a: Listed, b: Listed): number => {
    if (order === ListOrder.NAME) return Buffer.compare(bytes(a), bytes(b));
    if (order === ListOrder.UPDATE_TIME) return Number(a.updated - b.updated);
    return order === ListOrder.REWARD && a.reward !== b.reward ? (a.reward < b.reward ? -1 : 1) : 0;
  };
  const sign = ascending ? 1 : -1;
  const isLast = ({ reward }: Listed) => Number(order === ListOrder.REWARD && Number.isNaN(reward));
  const numbered = all.map((row, i) => ({ row, i }));
  numbered.sort((a, b) => isLast(a.row) - isLast(b.row) || sign * (compare(a.row, b.row) || a.i - b.i));
  return numbered.map(({ row }) => row.id);
}

function nanos(time: { readonly seconds: bigint; readonly nanos: number } | undefined): bigint {
  return (time?.seconds ?? 0n) * 1_000_000_000n + BigInt(time?.nanos ?? 0);
}

async function makeTrajectories(scene: AppScene): Promise<Listed[]> {
  const ids: string[] = [];
  for (const [i, name] of NAMES.entries()) {
    const { id } = await scene.create({ name, labels: new Map([['kind', `Label ${i}`]]) });
    ids.push(id);
    const reward = REWARDS[i];
    const rewards = i === 5 ? [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY] : [reward];
    await scene.write(
      { id },
      rewards.map((each, n) => step(BigInt(n), 'w', { reward: each })),
    );
  }
  await scene.rpc.updateTrajectory({ trajectoryId: ids[1]!, updateMask: { paths: ['metrics'] }, metrics: { a: 1 } });
  const shown = await Promise.all(ids.map((trajectoryId) => scene.rpc.getTrajectory({ trajectoryId })));
  return shown.map(({ trajectory }) => {
    const { id = '', name = '', rewardSum: reward = 0 } = trajectory ?? {};
    return { id, name, reward, updated: nanos(trajectory?.updateTime) };
  });
}

async function makeRuns(scene: AppScene): Promise<Listed[]> {
  const made: Listed[] = [];
  for (const [i, name] of NAMES.entries()) {
    const rewards = REWARDS[i] === undefined ? [] : [REWARDS[i]];
    const withMain = i === 1 ? {} : { mainTrajectory: { root: { reward: rewards[0] ?? 0, actions: [], states: [] } } };
    const runName = name === '' ? 'c' : i === 5 ? 'b2' : name;
    const { run } = await scene.rpc.createRun({ name: runName, labels: { kind: `Label ${i}` }, ...withMain });
    const reward = run?.mainTrajectoryId === '' ? Number.NaN : (run?.rewardSum ?? Number.NaN);
    made.push({ id: run?.id ?? '', name: runName, reward, updated: nanos(run?.updateTime) });
  }
  return made;
}

describeApp('orders of lists', (on) => {
  it('RD4: trajectories by creation, update, name or reward, in both directions and in pages of any size', async () => {
    const scene = on.scene();
    const all = await makeTrajectories(scene);
    for (const order of ORDERS) {
      for (const ascending of [true, false]) {
        for (const pageSize of [1, 3, 50]) {
          const found = await collect(async (page) => {
            const answer = await scene.rpc.listTrajectories({ ...page, order, ascending });
            return [answer.trajectories, answer.nextPageToken];
          }, pageSize);
          const ids = found.map(({ id }) => id);
          expect(ids, `${ListOrder[order]} ${ascending} ${pageSize}`).toEqual(expected(all, order, ascending));
        }
      }
    }
  });

  it('RD4: runs by creation, update, name or reward of the main trajectory, in both directions and in pages', async () => {
    const scene = on.scene();
    const all = await makeRuns(scene);
    for (const order of ORDERS) {
      for (const ascending of [true, false]) {
        for (const pageSize of [2, 50]) {
          const found = await collect(async (page) => {
            const answer = await scene.rpc.listRuns({ ...page, order, ascending });
            return [answer.runs, answer.nextPageToken];
          }, pageSize);
          const ids = found.map(({ run }) => run?.id);
          expect(ids, `${ListOrder[order]} ${ascending} ${pageSize}`).toEqual(expected(all, order, ascending));
        }
      }
    }
  });

  it('RD4: a page token of one order is refused in another', async () => {
    const { rpc } = on.scene();
    await rpc.createTrajectory({ name: 'a' });
    await rpc.createTrajectory({ name: 'b' });
    const { nextPageToken } = await rpc.listTrajectories({ order: ListOrder.NAME, pageSize: 1 });
    const other = rpc.listTrajectories({ order: ListOrder.REWARD, pageSize: 1, pageToken: nextPageToken });
    expect((await refusalOf(other)).reason).toBe('INVALID_PAGE_TOKEN');
  });

  it('RD4: the filter text finds a part of a name or of the value of a label, literally', async () => {
    const { rpc } = on.scene();
    const labels = { 'key one': 'A "quoted" 100%\\_', other: 'ÄÖ' };
    const { trajectory } = await rpc.createTrajectory({ name: 'Pole%x', labels });
    const { run } = await rpc.createRun({ name: 'Pole%x', labels });
    await rpc.createTrajectory({ name: 'none' });
    await rpc.createRun({ name: 'none' });
    const found = async (text: string) => {
      const [trajectories, runs] = [await rpc.listTrajectories({ text }), await rpc.listRuns({ text })];
      return [...trajectories.trajectories.map(({ id }) => id), ...runs.runs.map((each) => each.run?.id)];
    };
    for (const text of ['pole', 'POLE%', '%X', 'a "QUOTED"', '100%\\_', 'Ä', 'ÄÖ']) {
      expect(await found(text), text).toEqual([trajectory?.id, run?.id]);
    }
    for (const text of ['pole_', 'key one', 'ä', 'poleX', '\\\\']) expect(await found(text), text).toEqual([]);
  });
});
