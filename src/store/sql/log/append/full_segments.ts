import { bodyOf } from '../../../../domain/step_codec/frames.ts';
import type { PackedStep } from '../../../../domain/step_codec/packed_step.ts';
import { writeSmallStates } from '../../../../domain/step_codec/small_states.ts';
import type { AppendBatch } from '../../../contract/append.ts';
import type { PlainSegment } from './compressed_segments.ts';
import { namesStates } from './segment_builder.ts';
import { bytesInSegment, isLargeEnough, SegmentRoom } from './segment_room.ts';

/** Returns the segments that a merge would only compress, if all steps of the batches are stored. */
export function fullSegmentsOf(batches: readonly AppendBatch[]): PlainSegment[] {
  const full: PlainSegment[] = [];
  for (const [trajectory, own] of Map.groupBy(batches, ({ ref }) => ref.key)) {
    if (!haveLargeSegment(own) || own.some(({ steps }) => steps.some(namesStates))) continue;
    let segment = new FutureSegment();
    const segments = [segment];
    for (const { steps } of own) {
      for (const step of steps) {
        if (!segment.room.has(step, step.bytes)) {
          segment = new FutureSegment();
          segments.push(segment);
        }
        segment.add(step);
      }
    }
    for (const each of segments) if (each.room.isLargeEnough) full.push(each.plain(trajectory));
  }
  return full;
}

/** Most groups have fewer steps of a trajectory. */
function haveLargeSegment(batches: readonly AppendBatch[]): boolean {
  let [count, bytes] = [0, 0];
  for (const { steps } of batches) {
    count += steps.length;
    for (const step of steps) bytes += bytesInSegment(step.states, step.bytes);
  }
  return isLargeEnough(count, bytes);
}

/** A segment of steps that are not stored yet, and are stored as they are packed. */
class FutureSegment {
  readonly room = new SegmentRoom();
  readonly #steps: Uint8Array[] = [];
  readonly #states: PackedStep['states'][number][] = [];
  #first = 0n;

  add(step: PackedStep): void {
    if (this.#steps.length === 0) this.#first = step.stepNumber;
    this.room.take(step, step.bytes);
    this.#steps.push(step.bytes);
    this.#states.push(...step.states);
  }

  plain(trajectory: bigint): PlainSegment {
    return { trajectory, first: this.#first, body: bodyOf(this.#steps), states: writeSmallStates(this.#states) };
  }
}
