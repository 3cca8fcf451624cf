import { expect, it } from 'vitest';
import { inOneRoundTrip } from '../../src/store/sql/kit/transaction.ts';

/** Work that ends when the test says so. */
function controlled() {
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  return { promise, resolve, reject };
}

it('statements sent together return their results in place, also among values that are not promises', async () => {
  const [a, b] = [controlled(), controlled()];
  const all = inOneRoundTrip([a.promise, 2, undefined, b.promise]);
  b.resolve('b');
  a.resolve('a');
  expect(await all).toEqual(['a', 2, undefined, 'b']);
});

it('D3: a failed group of statements rejects after all have ended, with the first error, so that none outlives its transaction', async () => {
  const [a, b, c] = [controlled(), controlled(), controlled()];
  let ended = false;
  const all = inOneRoundTrip([a.promise, b.promise, c.promise]).finally(() => {
    ended = true;
  });
  const failure = expect(all).rejects.toThrow('the cause');
  b.reject(new Error('the cause'));
  await Promise.allSettled([b.promise]);
  a.reject(new Error('the consequence'));
  await Promise.allSettled([a.promise]);
  expect(ended).toBe(false);
  c.resolve('late');
  await failure;
  expect(ended).toBe(true);
});
