import { expect, it, vi } from 'vitest';
import { Sampled } from '../../src/observe/sampled.ts';

it('a value is read once for all who ask at a time, and then not for a while', async () => {
  let reads = 0;
  const sampled = new Sampled(async () => ++reads, { everyMs: 60_000 });
  expect(sampled.value).toBeUndefined();
  await Promise.all([sampled.refresh(), sampled.refresh()]);
  await sampled.refresh();
  expect([sampled.value, reads]).toEqual([1, 1]);
});

it('a read that does not end keeps nobody waiting, and no second one begins', async () => {
  let reads = 0;
  const read = Promise.withResolvers<number>();
  const sampled = new Sampled(
    () => {
      reads += 1;
      return read.promise;
    },
    { everyMs: 0, patienceMs: 1 },
  );
  await sampled.refresh();
  await sampled.refresh();
  expect([sampled.value, reads]).toEqual([undefined, 1]);
  read.resolve(7);
  await sampled.refresh();
  expect(sampled.value).toBe(7);
});

it('after a failure there is no value', async () => {
  let fails = false;
  const read = async () => {
    if (fails) throw new Error('down');
    return 1;
  };
  const sampled = new Sampled(read, { everyMs: 0 });
  await sampled.refresh();
  expect(sampled.value).toBe(1);
  fails = true;
  await sampled.refresh();
  expect(sampled.value).toBeUndefined();
});

it('reads again after a rest that is a multiple of what the last read took', async () => {
  vi.useFakeTimers({ toFake: ['performance', 'setTimeout', 'clearTimeout'] });
  try {
    let reads = 0;
    const read = async () => {
      reads += 1;
      vi.advanceTimersByTime(3);
    };
    const sampled = new Sampled(read, { everyMs: 0, pausePerWork: 20 });
    // A hundred times a second.
    for (let i = 0; i < 100; i += 1) {
      await sampled.refresh();
      vi.advanceTimersByTime(10);
    }
    // Each takes 3 ms, and the rest after it 60 ms.
    expect(reads).toBe(17);
  } finally {
    vi.useRealTimers();
  }
});
