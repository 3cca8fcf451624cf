import type { Digest } from '../../../../domain/ids.ts';
import type { NewState } from '../../../../domain/step.ts';
import type { ImportedStep, ImportedSteps } from './imported_steps.ts';
import type { AttachedToStep } from './step_chunks.ts';

/** Steps of an archive with everything that arrived for them. */
export interface StepsToImport extends ImportedSteps {
  /** The messages of these steps, each after its length. */
  readonly bytes: Uint8Array;
  readonly attached: readonly AttachedToStep[];
  readonly inline: readonly NewState[];
  /** Of the states that are stored with the steps. */
  readonly smallBytes: number;
}

/** Bounds of one transaction, unless one part has more. */
const MOST_STEPS = 2048;
const MOST_BYTES = 4 * 1024 * 1024;

/** Consecutive parts of one trajectory, which one transaction writes: each transaction waits for the disk. */
export class HeldSteps {
  readonly steps: ImportedStep[] = [];
  readonly attached: AttachedToStep[] = [];
  readonly #inline = new Map<Digest, NewState>();
  #bytes = 0;

  get inline(): readonly NewState[] {
    return [...this.#inline.values()];
  }

  hasRoomFor(part: StepsToImport): boolean {
    return this.steps.length + part.steps.length <= MOST_STEPS && this.#bytes + sizeOf(part) <= MOST_BYTES;
  }

  add(part: StepsToImport): void {
    for (const step of part.steps) this.steps.push(step);
    for (const each of part.attached) this.attached.push(each);
    for (const state of part.inline) this.#inline.set(state.digest, state);
    this.#bytes += sizeOf(part);
  }
}

function sizeOf({ bytes, inline, smallBytes }: StepsToImport): number {
  return inline.reduce((sum, { data }) => sum + data.length, bytes.length + smallBytes);
}
