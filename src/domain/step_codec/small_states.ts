import { isSmall, type StateRef } from '../step.ts';

/**
 * Bytes of the small states of consecutive steps, in order of step and of the state's place in it. Each state of a step
 * has a byte: 1 if its bytes follow, and 0 if it has a row of its own. Sizes are in the steps. So the bytes of
 * consecutive segments can be joined.
 */
export function writeSmallStates(states: readonly StateRef[]): Uint8Array {
  const parts: Uint8Array[] = [];
  for (const state of states) {
    if (isSmall(state)) parts.push(BYTES_FOLLOW, state.data);
    else parts.push(OWN_ROW);
  }
  return Buffer.concat(parts);
}

const OWN_ROW = Uint8Array.of(0);
const BYTES_FOLLOW = Uint8Array.of(1);

/** Reads what `writeSmallStates` wrote, state by state. */
export class SmallStates {
  readonly #bytes: Uint8Array;
  #at = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
  }

  /** Number of bytes of the states that were read. */
  get length(): number {
    return this.#at;
  }

  /**
   * Returns the bytes of the next state, or undefined if it has a row of its own. Damaged bytes do not match the
   * state's digest, which the caller compares.
   */
  next(size: number): Uint8Array | undefined {
    const isHere = this.#bytes[this.#at] === 1;
    const from = this.#at + 1;
    this.#at = isHere ? from + size : from;
    return isHere ? this.#bytes.subarray(from, this.#at) : undefined;
  }
}
