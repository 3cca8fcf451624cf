import { isSmall, type StateRef } from '../step.ts';

/**
 * Bytes of the small states of consecutive steps, in order of step and of the state's place in it. Each state of a step
 * has a byte: 1 if its bytes follow, and 0 if it has a row of its own. Sizes are in the steps. No bytes at all mean that
 * no state is small.
 */
export function writeSmallStates(states: readonly StateRef[]): Uint8Array {
  if (!states.some(isSmall)) return NO_BYTES;
  const parts: Uint8Array[] = [];
  for (const state of states) {
    if (isSmall(state)) parts.push(BYTES_FOLLOW, state.data);
    else parts.push(OWN_ROW);
  }
  return Buffer.concat(parts);
}

const NO_BYTES = new Uint8Array();
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
   * Returns the bytes of the next state, or undefined if it has a row of its own. Damaged bytes do not match the state's
   * digest, which the caller compares.
   */
  next(size: number): Uint8Array | undefined {
    if (this.#bytes.length === 0) return undefined;
    const isSmall = this.#bytes[this.#at] !== 0;
    const from = this.#at + 1;
    this.#at = isSmall ? from + size : from;
    return isSmall ? this.#bytes.subarray(from, this.#at) : undefined;
  }
}
