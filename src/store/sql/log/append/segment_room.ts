import { isSmall } from '../../../../domain/step.ts';
import { frameBytes } from '../../../../domain/step_codec/frames.ts';
import type { PackedStep } from '../../../../domain/step_codec/packed_step.ts';
import { SEGMENT_BYTES, SEGMENT_STEPS } from '../../../contract/append.ts';

/**
 * Whether a segment with so many steps and bytes, small states included, compresses about as well as a larger one. Such
 * a segment is not merged again after it is compressed.
 */
export function isLargeEnough(steps: number, bytes: number): boolean {
  return steps >= SEGMENT_STEPS / 2 || bytes >= SEGMENT_BYTES / 4;
}

/** Decides how many consecutive steps a segment has. */
export class SegmentRoom {
  #steps = 0;
  #bytes = 0;

  get isLargeEnough(): boolean {
    return isLargeEnough(this.#steps, this.#bytes);
  }

  /** `bytes`: the step as it is stored. */
  has({ states }: PackedStep, bytes: Uint8Array): boolean {
    if (this.#steps === 0) return true;
    return this.#steps < SEGMENT_STEPS && this.#bytes + bytesInSegment(states, bytes) <= SEGMENT_BYTES;
  }

  take({ states }: PackedStep, bytes: Uint8Array): void {
    this.#steps += 1;
    this.#bytes += bytesInSegment(states, bytes);
  }
}

/** Returns the bytes that a step adds to its segment. */
export function bytesInSegment(states: PackedStep['states'], step: Uint8Array): number {
  let bytes = frameBytes(step);
  for (const state of states) if (isSmall(state)) bytes += state.data.length;
  return bytes;
}
