/**
 * Returns the values of several sources, each with the index of its source, as they come. Each source is asked for one
 * value at a time, and sources that always have one do not hold up the others. The first error ends all sources.
 */
export async function* merged<T>(
  sources: readonly AsyncGenerator<T, void, undefined>[],
): AsyncGenerator<readonly [index: number, value: T], void, undefined> {
  const waiting = new Map<number, Promise<readonly [number, IteratorResult<T, void>]>>();
  const ask = (index: number, source: AsyncGenerator<T, void, undefined>) =>
    waiting.set(
      index,
      source.next().then((result) => [index, result] as const),
    );
  for (const [index, source] of sources.entries()) ask(index, source);
  try {
    while (waiting.size > 0) {
      const [index, result] = await Promise.race(waiting.values());
      // Asked again, the source comes after all others.
      waiting.delete(index);
      if (result.done === true) continue;
      yield [index, result.value];
      ask(index, sources[index]!);
    }
  } finally {
    for (const left of waiting.values()) left.catch(() => undefined);
    for (const source of sources) void source.return(undefined).catch(() => undefined);
  }
}
