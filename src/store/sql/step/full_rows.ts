import type { PackedStep } from '../../../domain/step_codec/packed_step.ts';
import { writeSmallStates } from '../../../domain/step_codec/small_states.ts';
import type { AppendBatch } from '../../contract/append.ts';
import type { PlainRow } from './compressed_rows.ts';
import { RowRoom, rowBytes, SEGMENT_BYTES, SEGMENT_STEPS } from './row_room.ts';
import { namesStates, type StepEncoder } from './segment.ts';

/**
 * Returns the rows that a merge would only compress, if all steps of the batches are stored: those of a trajectory with
 * more than a full row. Rows that are less than half full are left to merges.
 */
export function fullRowsOf(batches: readonly AppendBatch[], encoder: StepEncoder): PlainRow[] {
  const full: PlainRow[] = [];
  for (const [trajectory, own] of Map.groupBy(batches, ({ ref }) => ref.key)) {
    if (!mayFillRow(own) || own.some(({ steps }) => steps.some(namesStates))) continue;
    let row = new FutureRow();
    const rows = [row];
    for (const { steps } of own) {
      for (const step of steps) {
        const frame = encoder.encode(step, NO_SIZES);
        if (!row.room.has(step, frame)) {
          row = new FutureRow();
          rows.push(row);
        }
        row.add(step, frame);
      }
    }
    if (rows.length === 1 && !row.room.isFull) continue;
    for (const each of rows) if (each.room.isHalfFull) full.push(each.plain(trajectory));
  }
  return full;
}

const NO_SIZES: ReadonlyMap<string, number> = new Map();

/** Most bytes of the length of a step. */
const LENGTH_BYTES = 5;

/** Most groups have fewer steps of a trajectory, and are not encoded twice. */
function mayFillRow(batches: readonly AppendBatch[]): boolean {
  let [count, bytes] = [0, 0];
  for (const { steps } of batches) {
    count += steps.length;
    for (const step of steps) bytes += LENGTH_BYTES + rowBytes(step.states, step.bytes);
  }
  return count >= SEGMENT_STEPS || bytes >= SEGMENT_BYTES;
}

/** A row of steps that are not stored yet. */
class FutureRow {
  readonly room = new RowRoom();
  readonly #frames: Uint8Array[] = [];
  readonly #states: PackedStep['states'][number][] = [];
  #first = 0n;

  add(step: PackedStep, frame: Uint8Array): void {
    if (this.#frames.length === 0) this.#first = step.stepNumber;
    this.room.take(step, frame);
    this.#frames.push(frame);
    this.#states.push(...step.states);
  }

  plain(trajectory: bigint): PlainRow {
    const body = Buffer.concat(this.#frames);
    return { trajectory, first: this.#first, body, states: writeSmallStates(this.#states) };
  }
}
