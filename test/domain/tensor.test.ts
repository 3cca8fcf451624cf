import { describe, expect, it } from 'vitest';
import { itemBytes, tensorBytes } from '../../src/domain/step.ts';

describe('tensors', () => {
  it.each([
    ['|b1', 1],
    ['|i1', 1],
    ['|u1', 1],
    ['<i2', 2],
    ['>u8', 8],
    ['<f2', 2],
    ['<f16', 16],
    ['>c32', 32],
    ['|S0', 0],
    ['|S9999999', 9_999_999],
    ['<U0', 0],
    ['<U3', 12],
    ['<M8', 8],
    ['<M8[ns]', 8],
    ['>m8[25s]', 8],
    ['<M8[99999999as]', 8],
  ])('FM3: an item of %s has %i bytes', (dtype, bytes) => {
    expect(itemBytes(dtype)).toBe(bytes);
    expect(dtype.length).toBeLessThanOrEqual(16);
  });

  it.each([
    '',
    'f4',
    '=f4',
    '|f4',
    '<f3',
    '<f12',
    '<b1',
    '|b2',
    '<i1',
    '<O8',
    '|O',
    '|V8',
    '<S3',
    '|U3',
    '|S01',
    '|S10000000',
    '|S-1',
    '|S',
    '<M4',
    '<M8[]',
    '<M8[0s]',
    '<M8[weeks]',
    ' <f4',
    '<f4\n',
    '<f4,<f4',
    '(2,)<f4',
  ])('FM3: no tensor has the dtype "%s"', (dtype) => {
    expect(itemBytes(dtype)).toBeUndefined();
  });

  it('FM3: a shape of any product has a size, and none is that of one item', () => {
    expect(tensorBytes(4, [])).toBe(4);
    expect(tensorBytes(4, [2, 3])).toBe(24);
    expect(tensorBytes(4, [0, 2 ** 31 - 1])).toBe(0);
    const largest = new Array(32).fill(2 ** 31 - 1);
    expect(tensorBytes(4 * 9_999_999, largest)).toBeGreaterThan(2 ** 53);
    expect(tensorBytes(4 * 9_999_999, [...largest.slice(1), 0])).toBe(0);
    expect(tensorBytes(0, largest)).toBe(0);
  });
});
