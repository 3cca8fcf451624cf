import { expect, it } from 'vitest';
import type { SegmentRow } from '../../src/store/sql/kit/tables/steps.ts';
import { RecentSegments } from '../../src/store/sql/log/merge/recent_segments.ts';

const row = (trajectory: bigint, first: bigint, next: bigint, bytes = 100) =>
  ({
    trajectory,
    first_step_number: first,
    next_step_number: next,
    body: new Uint8Array(bytes),
    states: new Uint8Array(0),
  }) as SegmentRow;
const rangesOf = (rows: readonly SegmentRow[]) =>
  rows.map(({ first_step_number, next_step_number }) => [first_step_number, next_step_number].map(Number));

it('recent segments of a trajectory are consecutive: one that does not follow the last takes the place of all', () => {
  const recent = new RecentSegments();
  recent.add([row(1n, 0n, 2n), row(1n, 2n, 3n), row(2n, 5n, 6n)]);
  expect(rangesOf(recent.from(1n, 0n))).toEqual([
    [0, 2],
    [2, 3],
  ]);
  expect(rangesOf(recent.from(1n, 2n))).toEqual([[2, 3]]);
  expect(recent.from(1n, 1n)).toEqual([]);
  recent.add([row(1n, 4n, 5n)]);
  expect(recent.from(1n, 0n)).toEqual([]);
  expect(rangesOf(recent.from(1n, 4n))).toEqual([[4, 5]]);
  expect(rangesOf(recent.from(2n, 5n))).toEqual([[5, 6]]);
});

it('a merged segment takes the place of those that it replaces, and earlier ones are dropped', () => {
  const recent = new RecentSegments();
  recent.add([0n, 1n, 2n, 3n, 4n].map((first) => row(1n, first, first + 1n)));
  recent.replace(1n, [row(1n, 1n, 4n)], 1n);
  expect(rangesOf(recent.from(1n, 1n))).toEqual([
    [1, 4],
    [4, 5],
  ]);
  recent.replace(1n, [], 4n);
  expect(recent.from(1n, 1n)).toEqual([]);
  expect(rangesOf(recent.from(1n, 4n))).toEqual([[4, 5]]);
});

it('recent segments have a bound of bytes, and the trajectory that was added first is evicted first', () => {
  const recent = new RecentSegments(10_000);
  recent.add([row(1n, 0n, 1n, 4000), row(2n, 0n, 1n, 2000)]);
  recent.add([row(1n, 1n, 2n, 10)]);
  expect(recent.from(1n, 0n)).toHaveLength(2);
  recent.add([row(3n, 0n, 1n, 2000)]);
  expect([1n, 2n, 3n].map((key) => recent.from(key, 0n).length)).toEqual([0, 1, 1]);
  recent.add([row(4n, 0n, 1n, 10_000)]);
  expect([2n, 3n, 4n].map((key) => recent.from(key, 0n).length)).toEqual([0, 0, 0]);
  recent.add([row(2n, 1n, 2n, 8000)]);
  expect(recent.from(2n, 1n)).toHaveLength(1);
});
