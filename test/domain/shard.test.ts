import fc from 'fast-check';
import { expect, it } from 'vitest';
import { isInShard } from '../../src/domain/shard.ts';

it('RD6: a trajectory is in the part that the end of its id names, and in no other', () => {
  const id = '00000000-0000-4000-8000-0000f000000a';
  expect([0, 1, 2].map((index) => isInShard(id, { index, count: 3 }))).toEqual([false, true, false]);
  expect(isInShard('00000000-0000-4000-8000-000000ffffff', { index: 0xffffff % 65_536, count: 65_536 })).toBe(true);
  fc.assert(
    fc.property(fc.uuid(), fc.integer({ min: 1, max: 65_536 }), (some, count) => {
      const index = Number.parseInt(some.slice(-7), 16) % count;
      expect(isInShard(some, { index, count })).toBe(true);
      expect(isInShard(some, { index: (index + 1) % count, count })).toBe(count === 1);
    }),
  );
});
