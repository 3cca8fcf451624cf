import { bodyOf } from '../../../../domain/step_codec/frames.ts';
import type { PackedStep } from '../../../../domain/step_codec/packed_step.ts';
import { writeSmallStates } from '../../../../domain/step_codec/small_states.ts';
import type { AppendBatch } from '../../../contract/append.ts';
import type { PlainRow } from './compressed_segments.ts';
import { namesStates } from './segment_builder.ts';
import { RowRoom, rowBytes, SEGMENT_BYTES, SEGMENT_STEPS } from './segment_room.ts';

/**
 * Returns the rows that a merge would only compress, if all steps of the batches are stored: those of a trajectory with
 * more than a full row. Rows that are less than half full are left to merges.
 */
export function fullRowsOf(batches: readonly AppendBatch[]): PlainRow[] {
  const full: PlainRow[] = [];
  for (const [trajectory, own] of Map.groupBy(batches, ({ ref }) => ref.key)) {
    if (!mayFillRow(own) || own.some(({ steps }) => steps.some(namesStates))) continue;
    let row = new FutureRow();
    const rows = [row];
    for (const { steps } of own) {
      for (const step of steps) {
        if (!row.room.has(step, step.bytes)) {
          row = new FutureRow();
          rows.push(row);
        }
        row.add(step);
      }
    }
    if (rows.length === 1 && !row.room.isFull) continue;
    for (const each of rows) if (each.room.isHalfFull) full.push(each.plain(trajectory));
  }
  return full;
}

/** Most groups have fewer steps of a trajectory. */
function mayFillRow(batches: readonly AppendBatch[]): boolean {
  let [count, bytes] = [0, 0];
  for (const { steps } of batches) {
    count += steps.length;
    for (const step of steps) bytes += rowBytes(step.states, step.bytes);
  }
  return count >= SEGMENT_STEPS || bytes >= SEGMENT_BYTES;
}

/** A row of steps that are not stored yet, and are stored as they are packed. */
class FutureRow {
  readonly room = new RowRoom();
  readonly #steps: Uint8Array[] = [];
  readonly #states: PackedStep['states'][number][] = [];
  #first = 0n;

  add(step: PackedStep): void {
    if (this.#steps.length === 0) this.#first = step.stepNumber;
    this.room.take(step, step.bytes);
    this.#steps.push(step.bytes);
    this.#states.push(...step.states);
  }

  plain(trajectory: bigint): PlainRow {
    return { trajectory, first: this.#first, body: bodyOf(this.#steps), states: writeSmallStates(this.#states) };
  }
}
