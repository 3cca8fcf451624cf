/** Equal elements of two lists: `length` elements, from the index `input` and from the index `output` on. */
export interface Match {
  readonly input: number;
  readonly output: number;
  readonly length: number;
}

/**
 * Returns matches in ascending order of both lists. Elements that occur once in each list are matched first, as many as
 * have the same order in both ("patience diff"). Then the equal elements at the end of each gap are matched. The last
 * match is at the ends of the lists. Takes O(n log n).
 */
export function alignArrays(input: readonly string[], output: readonly string[]): Match[] {
  const matches: Match[] = [];
  let [i, j] = [0, 0];
  for (const anchor of [...anchorsOf(input, output), { input: input.length, output: output.length, length: 0 }]) {
    let equal = 0;
    while (
      i < anchor.input - equal &&
      j < anchor.output - equal &&
      input[anchor.input - equal - 1] === output[anchor.output - equal - 1]
    ) {
      equal += 1;
    }
    matches.push({ input: anchor.input - equal, output: anchor.output - equal, length: anchor.length + equal });
    i = anchor.input + anchor.length;
    j = anchor.output + anchor.length;
  }
  return matches;
}

function anchorsOf(input: readonly string[], output: readonly string[]): Match[] {
  const places = uniquePlaces(output);
  const pairs: Match[] = [];
  for (const [text, place] of uniquePlaces(input)) {
    const found = places.get(text);
    if (place !== undefined && found !== undefined) pairs.push({ input: place, output: found, length: 1 });
  }
  return longestAscending(pairs);
}

/** Returns the index of each text; undefined for a text that occurs several times. */
function uniquePlaces(texts: readonly string[]): Map<string, number | undefined> {
  const places = new Map<string, number | undefined>();
  for (let i = 0; i < texts.length; i += 1) places.set(texts[i]!, places.has(texts[i]!) ? undefined : i);
  return places;
}

/** Returns the longest selection of pairs whose outputs ascend. The inputs ascend already. */
function longestAscending(pairs: readonly Match[]): Match[] {
  interface Chain {
    readonly pair: Match;
    readonly before: Chain | undefined;
  }
  // The chain of each length that ends at the smallest output.
  const best: Chain[] = [];
  for (const pair of pairs) {
    let [low, high] = [0, best.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (best[middle]!.pair.output < pair.output) low = middle + 1;
      else high = middle;
    }
    best[low] = { pair, before: best[low - 1] };
  }
  const found: Match[] = [];
  for (let chain = best.at(-1); chain !== undefined; chain = chain.before) found.push(chain.pair);
  return found.reverse();
}
