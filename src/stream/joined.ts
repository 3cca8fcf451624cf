type Source<T> = AsyncGenerator<T, void, undefined>;

/**
 * Returns the values of several sources as they come. Each source is asked for one value at a time, and sources that
 * always have one do not hold up the others. The first error ends all sources. `stop` must end what they wait for.
 */
export async function* joined<T>(sources: readonly Source<T>[], stop: () => void): Source<T> {
  const waiting = new Map<Source<T>, Promise<readonly [Source<T>, IteratorResult<T, void>]>>();
  const ask = (source: Source<T>) =>
    waiting.set(
      source,
      source.next().then((result) => [source, result] as const),
    );
  for (const source of sources) ask(source);
  try {
    while (waiting.size > 0) {
      const [source, result] = await Promise.race(waiting.values());
      // Asked again, the source comes after all others.
      waiting.delete(source);
      if (result.done === true) continue;
      yield result.value;
      ask(source);
    }
  } finally {
    stop();
    await Promise.allSettled([...waiting.values(), ...sources.map((source) => source.return())]);
  }
}
