import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { tupleKey } from '../../src/domain/tuple_key.ts';
import { CHARACTER } from '../support/character.ts';

/** Texts that contain possible separators, quotes and escapes. */
const text = fc.oneof(
  fc.string({ unit: fc.constantFrom('a', '/', ',', '"', '\\', '\0', ' ', '1', '\ud800') }),
  fc.string({ unit: CHARACTER }),
);

describe('keys of tuples', () => {
  it('N1: different tuples of namespace, RPC and request id have different keys', () => {
    fc.assert(
      fc.property(fc.tuple(text, text, text), fc.tuple(text, text, text), (one, other) => {
        const same = one.every((part, i) => part === other[i]);
        expect(tupleKey(...one) === tupleKey(...other)).toBe(same);
      }),
      { numRuns: 2000 },
    );
  });

  it('N1: texts that are equal when joined have different keys', () => {
    const joinedAlike = ['a', 'a/b', 'a/b/c'].map((namespace) => {
      return [namespace, 'a/b/c/d'.slice(namespace.length + 1)] as const;
    });
    expect(new Set(joinedAlike.map((tuple) => tupleKey(...tuple))).size).toBe(3);
    expect(tupleKey('a","b')).not.toBe(tupleKey('a', 'b'));
  });

  it('texts, numbers and unset values are distinct', () => {
    const values = ['1', 1n, '', undefined, 'undefined'];
    expect(new Set(values.map((value) => tupleKey(value))).size).toBe(values.length);
    expect(tupleKey(1)).toBe(tupleKey(1n));
  });
});
