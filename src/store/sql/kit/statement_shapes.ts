/**
 * Each length of a list produces another statement, and engines cache a limited number of prepared ones. These
 * functions keep the lengths few.
 */

/** Repeats the last item until the length is a power of two. For `in`, where repeated items have no effect. */
export function padded<T>(items: readonly T[]): T[] {
  const last = items.at(-1);
  if (last === undefined) return [];
  const length = 2 ** Math.ceil(Math.log2(items.length));
  return [...items, ...Array<T>(length - items.length).fill(last)];
}

/** Splits a list into parts whose lengths are powers of two, at most `most`, which must be one too. */
export function* inPowersOfTwo<T>(items: readonly T[], most: number): Generator<readonly T[]> {
  for (let at = 0; at < items.length; ) {
    const length = Math.min(most, 2 ** Math.floor(Math.log2(items.length - at)));
    yield items.slice(at, at + length);
    at += length;
  }
}

/**
 * Values or rows of one statement: engines bound how many parameters one has. A power of two, so that full lists have
 * one length.
 */
export const CHUNK = 1024;

/** The list in pieces that one statement takes. */
export function* chunksOf<T>(items: readonly T[]): Generator<readonly T[]> {
  for (let at = 0; at < items.length; at += CHUNK) yield items.slice(at, at + CHUNK);
}
