import { randomBytes } from 'node:crypto';
import process from 'node:process';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { describe, expect, test } from 'vitest';
import { compressState, decompress, free } from '../../src/store/sql/kit/compression.ts';

describe('bytes that are freed before a collection', () => {
  test('decompressed ones have memory of their own, and give it back', async () => {
    const size = 100_000;
    const bytes = decompress(await compressState(Buffer.alloc(size, 'state')), size);
    free(bytes);
    expect(bytes.buffer.byteLength).toBe(0);
  });

  test('a collection of young objects is enough to free them', async () => {
    const collectYoung = minorCollection();
    const [size, count] = [200_000, 40];
    const packed = await compressState(Buffer.alloc(size, 'state'));
    for (let i = 0; i < count; i += 1) decompress(packed, size);
    const before = process.memoryUsage().arrayBuffers;
    // Each collection ends the sweeping of the one before.
    for (let i = 0; i < 3; i += 1) collectYoung();
    expect(process.memoryUsage().arrayBuffers).toBeLessThan(before - (size * count) / 2);
  });

  test('small ones share memory, which stays', () => {
    const [bytes, other] = [Buffer.from('state'), Buffer.from('other')];
    expect(bytes.buffer).toBe(other.buffer);
    free(bytes);
    expect(other.toString()).toBe('other');
  });

  test('a part of other bytes stays', () => {
    const whole = Buffer.from(new ArrayBuffer(1000));
    whole.fill(7);
    free(whole.subarray(0, 900));
    free(whole.subarray(1));
    expect(whole.length).toBe(1000);
    expect(whole[999]).toBe(7);
  });
});

describe('compressed bytes', () => {
  const kinds = {
    text: (size: number) => Buffer.alloc(size, 'the state of a step, '),
    random: randomBytes,
    mixed: (size: number) => Buffer.concat([Buffer.alloc(size >> 1, 'state'), randomBytes(size - (size >> 1))]),
  };

  test.for(Object.entries(kinds))('%s of any size is restored, with and without a dictionary', async ([, make]) => {
    for (const size of [0, 1, 4095, 4096, 4097, 30_000, 65_537, 262_144, 1_500_000]) {
      const data = make(size);
      expect(Buffer.compare(decompress(await compressState(data), size), data)).toBe(0);
      const dictionary = Buffer.concat([
        data.subarray(0, size >> 1),
        Buffer.from('inserted'),
        data.subarray(size >> 1),
      ]);
      expect(Buffer.compare(decompress(await compressState(data, dictionary), size, dictionary), data)).toBe(0);
    }
  });
});

/** Returns a function that collects objects of the young generation only. */
function minorCollection(): () => void {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as (options: { readonly type: 'minor' }) => void;
  return () => collect({ type: 'minor' });
}
