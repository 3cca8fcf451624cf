/** The whole state of a generator: four unsigned 32-bit words, not all zero. */
export type RandomState = readonly [number, number, number, number];

/**
 * A small seeded generator whose whole state can be saved and restored. It is xoshiro128** by Blackman and Vigna,
 * seeded by SplitMix32, so that neighbouring seeds are unrelated. Not for secrets.
 */
export class Random {
  #words: Uint32Array;

  constructor(state: RandomState) {
    this.#words = Uint32Array.from(state);
    if (this.#words.every((word) => word === 0)) throw new RangeError('a generator cannot start from all zeros');
  }

  static seeded(seed: number): Random {
    const next = splitMix32(seed);
    return new Random([next(), next(), next(), next()]);
  }

  get state(): RandomState {
    const [a = 0, b = 0, c = 0, d = 0] = this.#words;
    return [a, b, c, d];
  }

  /** Returns an integer in [0, 2^32). */
  uint32(): number {
    const words = this.#words;
    const [a = 0, b = 0, c = 0, d = 0] = words;
    const result = Math.imul(rotateLeft(Math.imul(b, 5), 7), 9) >>> 0;
    words[0] = a ^ d ^ b;
    words[1] = b ^ c ^ a;
    words[2] = c ^ a ^ (b << 9);
    words[3] = rotateLeft(d ^ b, 11);
    return result;
  }

  /** Returns a double in [low, high) with 53 random bits. */
  uniform(low: number, high: number): number {
    const unit = ((this.uint32() >>> 5) * 2 ** 26 + (this.uint32() >>> 6)) / 2 ** 53;
    return low + unit * (high - low);
  }
}

function splitMix32(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x9e3779b9) >>> 0;
    let word = Math.imul(state ^ (state >>> 16), 0x21f0aaad);
    word = Math.imul(word ^ (word >>> 15), 0x735a2d97);
    return (word ^ (word >>> 15)) >>> 0;
  };
}

function rotateLeft(word: number, bits: number): number {
  return (word << bits) | (word >>> (32 - bits));
}
