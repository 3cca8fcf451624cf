import type { Digest } from '../ids.ts';
import { type Content, isSmall, type StateRef, type Step } from '../step.ts';
import { readStep } from './read.ts';
import type { WireWriter } from './wire_writer.ts';
import { writeStep } from './write.ts';

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

/**
 * Returns the bytes of a packed step with the sizes of states that were named by digest: clients do not send them.
 * `out` must be empty, and is empty afterwards.
 */
export function withStateSizes(out: WireWriter, bytes: Uint8Array, sizes: ReadonlyMap<Digest, number>): Uint8Array {
  writeStep(out, sized(readStep(bytes, 0, bytes.length), sizes));
  return out.take();
}

function sized(step: Step, sizes: ReadonlyMap<Digest, number>): Step {
  const sizeOf = (state: { readonly digest: Digest; readonly size: number }) =>
    state.size || (sizes.get(state.digest) ?? 0);
  const withSize = <Part extends { readonly content: Content | undefined }>(part: Part): Part => {
    const { content } = part;
    return content?.kind === 'state' ? { ...part, content: { ...content, size: sizeOf(content) } } : part;
  };
  return {
    ...step,
    actions: step.actions.map(withSize),
    observations: step.observations.map(withSize),
    states: step.states.map((state) => ({ ...state, size: sizeOf(state) })),
  };
}
