import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { formatInstant, instantFromParts, instantToParts, parseInstant } from '../../src/domain/instant.ts';
import { anyInstant } from '../support/arbitrary-steps.ts';

const FIRST = instantFromParts(-62_135_596_800n, 0);
const LAST = instantFromParts(253_402_300_799n, 999_999_999);

describe('instants', () => {
  it.each([
    [FIRST, '0001-01-01T00:00:00.000000000Z'],
    [-1n, '1969-12-31T23:59:59.999999999Z'],
    [-1_000_000_000n, '1969-12-31T23:59:59.000000000Z'],
    [0n, '1970-01-01T00:00:00.000000000Z'],
    [1n, '1970-01-01T00:00:00.000000001Z'],
    [951_782_400_000_000_000n, '2000-02-29T00:00:00.000000000Z'],
    [LAST, '9999-12-31T23:59:59.999999999Z'],
  ])('%s ns is formatted as %s and parsed back', (instant, text) => {
    expect(formatInstant(instant)).toBe(text);
    expect(parseInstant(text)).toBe(instant);
  });

  it('are parsed from their own text, to the nanosecond, from year 1 to 9999', () => {
    fc.assert(
      fc.property(anyInstant, (instant) => {
        expect(parseInstant(formatInstant(instant))).toBe(instant);
      }),
    );
  });

  it('are converted from seconds and nanos, where nanos are never negative', () => {
    fc.assert(
      fc.property(anyInstant, (instant) => {
        const { seconds, nanos } = instantToParts(instant);
        expect(nanos).toBeGreaterThanOrEqual(0);
        expect(nanos).toBeLessThan(1e9);
        expect(instantFromParts(seconds, nanos)).toBe(instant);
      }),
    );
  });

  it('sort like their texts', () => {
    fc.assert(
      fc.property(anyInstant, anyInstant, (a, b) => {
        expect(formatInstant(a) < formatInstant(b)).toBe(a < b);
      }),
    );
  });

  it('are rounded down to microseconds if 6 digits are requested', () => {
    expect(formatInstant(1_999n, 6)).toBe('1970-01-01T00:00:00.000001Z');
    expect(formatInstant(-1n, 6)).toBe('1969-12-31T23:59:59.999999Z');
    fc.assert(
      fc.property(anyInstant, (instant) => {
        const cut = parseInstant(formatInstant(instant, 6));
        expect(cut <= instant && instant < cut + 1000n).toBe(true);
      }),
    );
  });

  it('are parsed from the format of Postgres', () => {
    expect(parseInstant('2026-11-21 12:15:00.1234+00')).toBe(parseInstant('2026-11-21T12:15:00.123400000Z'));
    expect(parseInstant('2026-11-21 12:15:00+00')).toBe(parseInstant('2026-11-21T12:15:00.000000000Z'));
    expect(parseInstant('0001-01-01 00:00:00+00')).toBe(FIRST);
  });

  it.each(['', 'now', '2026-13-01T00:00:00Z', 'infinity'])('are not parsed from "%s"', (text) => {
    expect(() => parseInstant(text)).toThrow(RangeError);
  });
});
