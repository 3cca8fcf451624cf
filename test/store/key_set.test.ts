import fc from 'fast-check';
import { expect, it } from 'vitest';
import { KeySet } from '../../src/store/sql/upkeep/usage/key_set.ts';

it('a KeySet equals a set of keys, near each other and far apart', () => {
  const key = fc.oneof(fc.bigInt(0n, 100n), fc.bigInt(8000n, 8400n), fc.bigInt(0n, 2n ** 53n - 1n));
  fc.assert(
    fc.property(fc.array(key), fc.array(key), (added, asked) => {
      const [keys, naive] = [new KeySet(), new Set<bigint>()];
      for (const each of added) {
        expect(keys.add(each)).toBe(!naive.has(each));
        naive.add(each);
      }
      for (const each of [...added, ...asked]) expect(keys.has(each)).toBe(naive.has(each));
    }),
  );
});
