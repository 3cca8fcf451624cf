import type { StateRef } from '../../../../domain/step.ts';
import { CommitBytes } from '../../../../domain/step_codec/server_fields.ts';
import { RESPONSE } from '../../../../domain/step_codec/tags.ts';
import { WireWriter } from '../../../../domain/step_codec/wire_writer.ts';
import { writeRewardSum, writeStoredStep } from '../../../../domain/step_codec/write.ts';
import type { EncodedSteps, NamedState, OwnedStep, StepView } from '../../../contract/step.ts';
import { type SegmentCursor, storedStep } from './segment.ts';

/** The current step of a page. */
export interface PageStep {
  readonly owner: OwnedStep['owner'];
  readonly at: SegmentCursor;
}

/** Larger than a page. Only attached states, which the size of a page does not count, can fill a part. */
const PART_BYTES = 384 * 1024;

interface Part {
  readonly owner: OwnedStep['owner'];
  readonly from: number;
  to: number;
  count: number;
  readonly states: NamedState[] | undefined;
}

/** Encodes the steps of a page as the field `steps` of a response, in parts of one owner each (FM7). */
export class PageEncoder {
  readonly #view: StepView;
  readonly #out: WireWriter;
  readonly #parts: Part[] = [];
  readonly #commits = new CommitBytes();

  /** `capacity`: expected size of the page. More is possible. */
  constructor(view: StepView, capacity: number) {
    this.#view = view;
    this.#out = new WireWriter(capacity);
  }

  /**
   * Adds the current step of `found`, with the states that were attached to it. `named` are all its states. Errors:
   * STEP_CORRUPT.
   */
  add(found: PageStep, attached: readonly StateRef[] | undefined, named?: readonly NamedState[]): void {
    const out = this.#out;
    const from = out.length;
    const begun = out.begin(RESPONSE.steps);
    if (attached === undefined) this.#forward(found);
    else writeStoredStep(out, storedStep(found.at, attached, this.#view));
    out.end(begun);
    let part = this.#parts.at(-1);
    if (part === undefined || part.owner.key !== found.owner.key || out.length - part.from > PART_BYTES) {
      part = { owner: found.owner, from, to: from, count: 0, states: named && [] };
      this.#parts.push(part);
    }
    part.to = out.length;
    part.count += 1;
    if (named !== undefined) part.states?.push(...named);
  }

  parts(): EncodedSteps[] {
    const bytes = this.#out.finish();
    return this.#parts.map(({ owner, from, to, count, states }) => {
      const part = { owner, count, bytes: bytes.subarray(from, to) };
      return states === undefined ? part : { ...part, states };
    });
  }

  #forward(found: PageStep): void {
    const { at } = found;
    at.forward(this.#out, this.#view);
    const commit = this.#commits.of(at.commit);
    this.#out.raw(commit, 0, commit.length);
    writeRewardSum(this.#out, at.rewardSum);
  }
}
