import { describe, expect, test } from 'vitest';
import { compress, decompress, free } from '../../src/store/sql/zstd.ts';

describe('bytes that are freed before a collection', () => {
  test('decompressed ones have memory of their own, and give it back', async () => {
    const size = 100_000;
    const bytes = decompress(await compress(Buffer.alloc(size, 'state')), size);
    free(bytes);
    expect(bytes.buffer.byteLength).toBe(0);
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
