import { describe, expect, it } from 'vitest';
import { COARSE_POINTS, GrowingValues } from '../../page/src/tree/growing_values.ts';
import type { Series } from '../../page/src/tree/series.ts';

const item = (id: string, end: number, branchPoint = -1) => ({ id, end, branchPoint });
const ALL = { from: undefined, to: undefined };

/** Each step has its own number as value. */
function serverOf(ends: Record<string, [first: number, end: number]>) {
  const calls: string[] = [];
  const read = async (
    ids: readonly string[] | undefined,
    { from = 0, to = 1e9 }: { from?: number | undefined; to?: number | undefined },
    points: number,
  ) => {
    calls.push(`${ids?.join() ?? 'tree'} ${from}..${to}${points === COARSE_POINTS ? ' coarse' : ''}`);
    const found = new Map<string, Series>();
    for (const id of ids ?? Object.keys(ends)) {
      const [first, end] = ends[id] ?? [0, 0];
      const steps = Array.from({ length: end - first }, (_, i) => first + i).filter(
        (step) => from <= step && step <= to,
      );
      found.set(id, { steps: Float64Array.from(steps), values: Float64Array.from(steps) });
    }
    return found;
  };
  return { calls, read };
}

describe('the values of a tree that grows', () => {
  it('are read once, and then only of grown and new trajectories from the first unknown step on', async () => {
    const values = new GrowingValues();
    const ends: Record<string, [number, number]> = { r: [0, 5], a: [3, 6] };
    const { calls, read } = serverOf(ends);
    await values.read([item('r', 5), item('a', 6, 2)], ALL, read, true);
    await values.read([item('r', 5), item('a', 6, 2)], ALL, read, true);
    ends.a = [3, 8];
    ends.b = [5, 7];
    const found = await values.read([item('r', 5), item('a', 8, 2), item('b', 7, 4)], ALL, read, true);
    expect(calls).toEqual(['tree 0..1000000000', 'a,b 5..1000000000']);
    expect([...found].map(([id, { steps }]) => [id, ...steps])).toEqual([
      ['r', 0, 1, 2, 3, 4],
      ['a', 3, 4, 5, 6, 7],
      ['b', 5, 6],
    ]);
  });

  it('are not read beyond the visible range, and again as a whole when there are too many points', async () => {
    const values = new GrowingValues();
    const ends: Record<string, [number, number]> = { r: [0, 5] };
    const { calls, read } = serverOf(ends);
    await values.read([item('r', 5)], { from: 1, to: 3 }, read, true);
    await values.read([item('r', 6)], { from: 1, to: 3 }, read, true);
    expect(calls).toEqual(['tree 1..3']);
    const all = new GrowingValues();
    ends.r = [0, 9000];
    await all.read([item('r', 5)], ALL, read, true);
    await all.read([item('r', 9000)], ALL, read, true);
    expect(calls.slice(1)).toEqual(['tree 0..1000000000', 'tree 0..1000000000']);
  });

  it('are coarse first, and fine if some were thinned', async () => {
    const { calls, read } = serverOf({ r: [0, 500], a: [3, 6] });
    const long = new GrowingValues();
    await long.read([item('r', 500), item('a', 6, 2)], ALL, read, false);
    for (let again = 0; again < 2; again += 1) await long.read([item('r', 500), item('a', 6, 2)], ALL, read, true);
    expect(calls).toEqual(['tree 0..1000000000 coarse', 'tree 0..1000000000']);
    const short = new GrowingValues();
    await short.read([item('a', 6, 2)], ALL, read, false);
    await short.read([item('a', 6, 2)], ALL, read, true);
    expect(calls.slice(2)).toEqual(['tree 0..1000000000 coarse']);
  });
});
