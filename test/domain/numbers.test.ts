import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type NumbersPart, numberIn, pathOfType, stateNumber } from '../../src/domain/numbers/pointer.ts';
import { tensorNumber, tensorPointers, tensorText } from '../../src/domain/numbers/tensor.ts';

/** Writes items of each dtype as NumPy does. */
const WRITERS = {
  '|i1': (view, at, value) => view.setInt8(at, Number(value)),
  '|u1': (view, at, value) => view.setUint8(at, Number(value)),
  '<i2': (view, at, value) => view.setInt16(at, Number(value), true),
  '>u2': (view, at, value) => view.setUint16(at, Number(value)),
  '<i4': (view, at, value) => view.setInt32(at, Number(value), true),
  '>u4': (view, at, value) => view.setUint32(at, Number(value)),
  '<i8': (view, at, value) => view.setBigInt64(at, BigInt(value), true),
  '>u8': (view, at, value) => view.setBigUint64(at, BigInt(value)),
  '<f4': (view, at, value) => view.setFloat32(at, Number(value), true),
  '>f8': (view, at, value) => view.setFloat64(at, Number(value)),
} as const satisfies Record<string, (view: DataView, at: number, value: number | bigint) => void>;

function bytesOf(dtype: keyof typeof WRITERS, values: readonly (number | bigint)[]): Uint8Array {
  const size = Number(dtype[2]);
  const data = new Uint8Array(size * values.length);
  for (const [at, value] of values.entries()) WRITERS[dtype](new DataView(data.buffer), at * size, value);
  return data;
}

const floats = (...values: number[]) => bytesOf('<f4', values);
const none = () => undefined;

describe('the numbers of a tensor', () => {
  it('are nested lists, and JSON Pointers address them, whatever the shape and the type', () => {
    const dtype = fc.constantFrom(...(Object.keys(WRITERS) as (keyof typeof WRITERS)[]));
    const shape = fc.array(fc.integer({ min: 1, max: 4 }), { maxLength: 3 });
    fc.assert(
      fc.property(dtype, shape, (type, lengths) => {
        const count = lengths.reduce((product, length) => product * length, 1);
        const form = { dtype: type, shape: lengths };
        const data = bytesOf(
          type,
          Array.from({ length: count }, (_, i) => i),
        );
        const nested: unknown = JSON.parse(tensorText(form, data)!);
        const pointers = [...tensorPointers(form)];
        expect(pointers).toHaveLength(count);
        for (const [i, pointer] of pointers.entries()) {
          const path = pointer.split('/').slice(1);
          expect(tensorNumber(form, data, path)).toBe(i);
          expect(path.reduce((value, part) => (value as Record<string, unknown>)[part], nested)).toBe(i);
        }
      }),
    );
  });

  it('of 16 and 32 bits have the shortest digits that mean them, as in NumPy', () => {
    expect(tensorText({ dtype: '<f4', shape: [3] }, floats(0.1, 1 / 3, -1e-8))).toBe('[0.1,0.33333334,-1e-8]');
    const special = [Number.NaN, Number.POSITIVE_INFINITY, -0];
    expect(tensorText({ dtype: '<f4', shape: [3] }, floats(...special))).toBe('[NaN,Infinity,-0]');
    fc.assert(
      fc.property(fc.float({ noNaN: true }), (value) => {
        expect(Math.fround(Number(tensorText({ dtype: '<f4', shape: [] }, floats(value))))).toBe(value);
      }),
    );
    const halves = (...bits: number[]) => new Uint8Array(Uint16Array.from(bits).buffer);
    const bits = [0x2e66, 0x3c00, 0xc000, 0x7bff, 0x0001, 0x7c00, 0xfc00, 0x7e00, 0x8000];
    expect(tensorText({ dtype: '<f2', shape: [9] }, halves(...bits))).toBe(
      '[0.1,1,-2,65500,5.96e-8,Infinity,-Infinity,NaN,-0]',
    );
  });

  it('of 64 bits have all their digits, and booleans are words and no numbers', () => {
    expect(tensorText({ dtype: '<i8', shape: [] }, bytesOf('<i8', [-(2n ** 63n)]))).toBe('-9223372036854775808');
    const flags = { dtype: '|b1', shape: [2] };
    expect(tensorText(flags, Uint8Array.of(1, 0))).toBe('[true,false]');
    expect(tensorNumber(flags, Uint8Array.of(1, 0), ['0'])).toBeUndefined();
    expect([...tensorPointers(flags)]).toEqual([]);
  });

  it.each([
    ['more than 4,096 items', { dtype: '<f4', shape: [4097] }, new Uint8Array(4 * 4097)],
    ['text', { dtype: '<U2', shape: [1] }, new Uint8Array(8)],
    ['complex items', { dtype: '<c8', shape: [1] }, new Uint8Array(8)],
    ['other bytes than its shape says', { dtype: '<f4', shape: [2] }, new Uint8Array(4)],
  ])('are not those of one with %s', (_, form, data) => {
    expect(tensorText(form, data)).toBeUndefined();
    expect(tensorNumber(form, data, ['0'])).toBeUndefined();
  });

  it('are all shown at 4,096, and an empty tensor of any shape is one empty list', () => {
    const most = tensorText({ dtype: '|u1', shape: [64, 64] }, new Uint8Array(4096))!;
    expect(JSON.parse(most)).toEqual(Array.from({ length: 64 }, () => new Array(64).fill(0)));
    expect(tensorText({ dtype: '<f4', shape: [2 ** 31 - 1, 0] }, new Uint8Array())).toBe('[]');
  });

  it.each(['', '0', '4', '00', '-1', '0/0', 'length', 'x'])(
    'of one dimension have none at "/%s" but within it',
    (at) => {
      const path = at === '' ? [] : at.split('/');
      expect(tensorNumber({ dtype: '<f4', shape: [4] }, floats(5, 6, 7, 8), path)).toBe(at === '0' ? 5 : undefined);
    },
  );
});

describe('a number in the parts of a step', () => {
  const tensor = (type: string, ...values: number[]): NumbersPart => {
    return { type, tensor: { dtype: '<f4', shape: [values.length], data: floats(...values) } };
  };
  /** {"robot": {"arm": [[1, 2], 3], "a key": [4]}} as Python stores it. */
  const nested = [tensor('robot.arm[0]', 1, 2), { type: 'robot.arm[1]', json: '3' }, tensor('robot["a key"]', 4)];

  it.each([
    ['/robot/arm/0/1', 2],
    ['/robot/arm/1', 3],
    ['/robot/a key/0', 4],
    ['/robot/arm/2', undefined],
    ['/robot', undefined],
    ['/1', 2],
  ])('RD9: %s of a nested value is %s: types are paths', (pointer, value) => {
    expect(numberIn(nested, pointer.split('/').slice(1), none)).toBe(value);
    const json = { type: '', json: '{"robot":{"arm":[[1,2],3],"a key":[4]}}' };
    if (pointer !== '/1') expect(numberIn([json], pointer.split('/').slice(1), none)).toBe(value);
  });

  it('RD9: a tuple of numbers has one at each index, and types that are no paths name no part', () => {
    const tuple = [tensor('[0]', 7), { type: '[1]', json: '8' }, { type: '[2]', json: 'true' }];
    expect(['1', '2'].map((at) => numberIn(tuple, [at], none))).toEqual([8, undefined]);
    expect(numberIn([{ type: 'pole', json: '{"angle":1}' }], ['angle'], none)).toBe(1);
    expect(numberIn([{ type: 'pole', json: '{"angle":1}' }], ['pole', 'angle'], none)).toBe(1);
  });

  it.each([
    ['', []],
    ['a', ['a']],
    ['a.b[0]["x\\"y"].c', ['a', 'b', '0', 'x"y', 'c']],
    ['[3]', ['3']],
    ['a b', []],
    ['text/plain', []],
    ['[01]', []],
    ['["\\x"]', []],
    ['.a', ['a']],
  ])('the type %j is the path %j', (type, path) => {
    expect(pathOfType(type)).toEqual(path);
  });

  it('RD9: the state of a tensor is asked for only if the path leads into it', () => {
    const asked: string[] = [];
    const bytes = floats(1, 2);
    const read = (digest: string) => {
      asked.push(digest);
      return bytes;
    };
    const stored = (type: string, digest: string, shape = [2]): NumbersPart => {
      return { type, tensor: { dtype: '<f4', shape, stateDigest: digest } };
    };
    const parts = [stored('pos', 'p'), stored('vel', 'v'), stored('picture', 'large', [4097])];
    expect(numberIn(parts, ['vel', '1'], read)).toBe(2);
    expect(numberIn(parts, ['vel', '7'], read)).toBeUndefined();
    expect(numberIn(parts, ['picture', '0'], read)).toBeUndefined();
    expect(asked).toEqual(['v']);
  });

  it('RD9: a state is JSON or, by its media type, a tensor', () => {
    const text = new TextEncoder().encode('{"x":[4]}');
    expect(stateNumber(text, 'application/json', ['x', '0'])).toBe(4);
    const type = 'application/vnd.anabranch.tensor;dtype=<f4;shape=1,2';
    expect(stateNumber(floats(4, 5), type, ['0', '1'])).toBe(5);
    expect(stateNumber(floats(4), 'application/vnd.anabranch.tensor;dtype=<f4;shape=', [])).toBe(4);
    expect(stateNumber(floats(4, 5), 'application/octet-stream', ['0', '1'])).toBeUndefined();
  });
});
