import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { tupleKey } from '../../src/domain/tuple_key.ts';

/** Texts made of what could be taken for a separator, a quote or an escape. */
const text = fc.oneof(
  fc.string({ unit: fc.constantFrom('a', '/', ',', '"', '\\', '\0', ' ', '1', '\ud800') }),
  fc.string({ unit: 'binary' }),
);

describe('keys of tuples', () => {
  it('N1: no two different tuples of namespace, RPC and request id have one key', () => {
    fc.assert(
      fc.property(fc.tuple(text, text, text), fc.tuple(text, text, text), (one, other) => {
        const same = one.every((part, i) => part === other[i]);
        expect(tupleKey(...one) === tupleKey(...other)).toBe(same);
      }),
      { numRuns: 2000 },
    );
  });

  it('N1: texts that are joined alike have different keys', () => {
    const joinedAlike = ['a', 'a/b', 'a/b/c'].map((namespace) => {
      return [namespace, 'a/b/c/d'.slice(namespace.length + 1)] as const;
    });
    expect(new Set(joinedAlike.map((tuple) => tupleKey(...tuple))).size).toBe(3);
    expect(tupleKey('a","b')).not.toBe(tupleKey('a', 'b'));
  });

  it('texts are told from numbers and from what is not set', () => {
    const values = ['1', 1n, '', undefined, 'undefined'];
    expect(new Set(values.map((value) => tupleKey(value))).size).toBe(values.length);
    expect(tupleKey(1)).toBe(tupleKey(1n));
  });
});
