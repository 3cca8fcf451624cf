import { expect, it } from 'vitest';
import { inPowersOfTwo, padded } from '../../src/store/sql/kit/kept_queries.ts';

const upTo = (length: number) => Array.from({ length }, (_, i) => i);

it('pads lists of all lengths to a few lengths, with items of the list', () => {
  const lengths = new Set<number>();
  for (let length = 0; length <= 1024; length += 1) {
    const list = padded(upTo(length));
    expect(list.slice(0, length)).toEqual(upTo(length));
    expect(new Set(list)).toEqual(new Set(upTo(length)));
    lengths.add(list.length);
  }
  expect([...lengths]).toEqual([0, ...upTo(11).map((power) => 2 ** power)]);
});

it('cuts lists of all lengths into a few lengths, and loses nothing', () => {
  for (let length = 0; length <= 200; length += 1) {
    const chunks = [...inPowersOfTwo(upTo(length), 64)];
    expect(chunks.flat()).toEqual(upTo(length));
    for (const { length: each } of chunks) expect([1, 2, 4, 8, 16, 32, 64]).toContain(each);
  }
});
