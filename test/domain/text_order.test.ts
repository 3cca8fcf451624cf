import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { isStorableText } from '../../src/domain/text.ts';
import { compareText } from '../../src/domain/text_order.ts';
import { CHARACTER } from '../support/character.ts';

describe('the order of text', () => {
  it('is that of its UTF-8 bytes, for any two texts', () => {
    const text = fc.oneof(
      fc.string({ unit: CHARACTER }),
      fc.string({ unit: fc.constantFrom('a', 'A', 'é', '\uffff', '\ue000', '\ud7ff', '🌊', '\u{10ffff}') }),
    );
    fc.assert(
      fc.property(text, text, (a, b) => {
        expect(Math.sign(compareText(a, b))).toBe(Buffer.compare(Buffer.from(a), Buffer.from(b)));
      }),
      { numRuns: 1000 },
    );
  });
});

describe('text that can be stored', () => {
  it('W11: contains no U+0000 and no lone surrogate; everything else is allowed', () => {
    for (const right of ['', 'a', '🌊', '\u0001', '\ufeff', '\uffff']) expect(isStorableText(right)).toBe(true);
    for (const wrong of ['\0', 'a\0b', '\ud83c', '\udf0a', '\udf0a\ud83c', 'a\ud800'])
      expect(isStorableText(wrong)).toBe(false);
  });
});
