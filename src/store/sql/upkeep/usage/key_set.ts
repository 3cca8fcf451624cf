const PAGE_BITS = 8192;

/** A set of row keys. Keys are assigned in ascending order, so a bit for each key is compact. */
export class KeySet {
  readonly #pages = new Map<number, Uint32Array>();

  has(key: bigint): boolean {
    const { page, word, bit } = bitOf(key);
    return ((this.#pages.get(page)?.[word] ?? 0) & bit) !== 0;
  }

  /** Returns whether the key is new. */
  add(key: bigint): boolean {
    const { page, word, bit } = bitOf(key);
    let words = this.#pages.get(page);
    if (words === undefined) {
      words = new Uint32Array(PAGE_BITS / 32);
      this.#pages.set(page, words);
    }
    const before = words[word]!;
    words[word] = before | bit;
    return (before & bit) === 0;
  }
}

function bitOf(key: bigint) {
  const page = Math.floor(Number(key) / PAGE_BITS);
  const index = Number(key) - page * PAGE_BITS;
  return { page, word: index >>> 5, bit: 1 << (index & 31) };
}
