import { describe, expect, it } from 'vitest';
import { type RewardLine, readRewardLines, sparkPath } from '../../page/src/home/sparkline.ts';
import type { Series } from '../../page/src/tree/series.ts';
import { connectClient } from '../../src/client/web/index.ts';

const series = (steps: number[], values: number[]): Series => ({
  steps: Float64Array.from(steps),
  values: Float64Array.from(values),
});

describe('the small line of the rewards of a run', () => {
  it('fills its box, from the first step to the last and from the lowest value to the highest', () => {
    expect(sparkPath(series([0, 5, 10], [2, 4, 3]))).toBe('M1.0 19.0L48.0 1.0L95.0 10.0');
  });

  it('leaves out values that have no place, and is not drawn through less than two', () => {
    expect(sparkPath(series([0, 5, 10], [2, Number.NaN, 4]))).toBe('M1.0 19.0L95.0 1.0');
    expect(sparkPath(series([0, 5], [Number.POSITIVE_INFINITY, 4]))).toBeUndefined();
    expect(sparkPath(series([3], [1]))).toBeUndefined();
    expect(sparkPath(series([], []))).toBeUndefined();
  });

  it('is level if all values are equal', () => {
    expect(sparkPath(series([0, 1], [7, 7]))).toBe('M1.0 19.0L95.0 19.0');
  });
});

describe('the rewards of listed runs', () => {
  const client = connectClient({ address: 'http://127.0.0.1:1' });
  const asked: (readonly string[])[] = [];
  const api = {
    trajectories: {
      ...client.trajectories,
      async *readStepSeries({ trajectoryIds = [] }: { readonly trajectoryIds?: string[] }) {
        asked.push(trajectoryIds);
        const own = { stepNumbers: [0n, 1n], values: [1, 2], stretchSteps: 1n, nextStepNumber: 2n };
        yield { series: trajectoryIds.map((trajectoryId) => ({ trajectoryId, ...own })) };
      },
    },
  } as unknown as Parameters<typeof readRewardLines>[0];
  const { signal } = new AbortController();

  it('are read with one call, and afterwards only where a reward has changed', async () => {
    const none: ReadonlyMap<string, RewardLine> = new Map();
    const runs = [
      { mainTrajectoryId: 'a', rewardSum: 1 },
      { mainTrajectoryId: '', rewardSum: 0 },
      { mainTrajectoryId: 'b', rewardSum: Number.NaN },
    ];
    const first = await readRewardLines(api, runs, none, signal);
    expect(asked).toEqual([['a', 'b']]);
    expect([...first.keys()]).toEqual(['a', 'b']);
    expect(await readRewardLines(api, runs, first, signal)).toBe(first);
    await readRewardLines(api, [{ mainTrajectoryId: 'a', rewardSum: 2 }, ...runs.slice(1)], first, signal);
    expect(asked).toEqual([['a', 'b'], ['a']]);
  });
});
