import { AnabranchError } from '../../../../domain/errors.ts';
import { formatInstant } from '../../../../domain/instant.ts';
import { canFold, withAttached } from '../../../../domain/pruning.ts';
import { isKept, type StateRef } from '../../../../domain/step.ts';
import { frameBytes } from '../../../../domain/step_codec/frames.ts';
import { SmallStates } from '../../../../domain/step_codec/small_states.ts';
import type { SegmentCompressor } from '../../kit/compression.ts';
import { sumsBefore } from '../../kit/running_sums.ts';
import type { SegmentRow } from '../../kit/tables/steps.ts';
import { type RestoredSteps, SegmentBuilder } from '../append/segment_builder.ts';
import { encodedStep, SegmentCursor } from '../read/segment.ts';
import { readStates } from '../read/stored_body.ts';
import type { Attachment } from '../states/attached.ts';
import { mergedSegment } from './merged_segment.ts';

/** Segments to be written in place of those that were read. */
export interface FoldedSegments {
  readonly segments: readonly SegmentRow[];
  /** The states that the segments now have. The others stay in rows of `attached_states`. */
  readonly folded: readonly Attachment[];
}

/**
 * Writes attached states into the steps of consecutive segments of a trajectory, as if they had come with them. Returns
 * undefined if a segment is damaged: then the segments stay as they are, and reads report the damage.
 */
export async function foldedSegments(
  compressor: SegmentCompressor,
  segments: readonly SegmentRow[],
  attached: readonly Attachment[],
): Promise<FoldedSegments | undefined> {
  const fold = new Fold(segments[0]!, attached);
  try {
    for (const segment of segments) fold.add(segment);
  } catch (error) {
    if (error instanceof AnabranchError && error.reason === 'STEP_CORRUPT') return undefined;
    throw error;
  }
  const folded = await Promise.all(
    fold.finish().map(async (segment) => (await mergedSegment(compressor, [segment])) ?? segment),
  );
  return { segments: folded, folded: fold.folded };
}

/** What the server has added to the step that is being written. */
interface Added {
  readonly writerEpoch: bigint;
  readonly commitTime: string;
  readonly names: readonly string[];
  readonly sentBytes: number;
}

class Fold {
  readonly folded: Attachment[] = [];
  readonly #attached: ReadonlyMap<bigint, readonly Attachment[]>;
  readonly #owner: ConstructorParameters<typeof SegmentBuilder>[0];
  readonly #full: SegmentRow[] = [];
  #open: SegmentBuilder;
  #added: Added | undefined;

  constructor(first: SegmentRow, attached: readonly Attachment[]) {
    this.#attached = Map.groupBy(attached, ({ stepNumber }) => stepNumber);
    const restored: RestoredSteps = {
      commitOf: () => this.#added!,
      attachedTo: () => this.#added!.names,
      sentBytes: () => this.#added!.sentBytes,
    };
    const { tree, trajectory: key, namespace, writer_epoch: writerEpoch } = first;
    this.#owner = { tree, key, namespace, writerEpoch, restored };
    this.#open = new SegmentBuilder(this.#owner, sumsBefore(first), first.first_step_number);
  }

  /** Errors: STEP_CORRUPT. */
  add(segment: SegmentRow): void {
    const small = new SmallStates(readStates(segment));
    for (const at = new SegmentCursor(segment); at.next(); ) {
      const sent = at.read('FULL');
      const stored = sent.states.map((state): StateRef => {
        const data = small.next(state.size);
        return data === undefined ? state : { ...state, data };
      });
      const { true: folded = [], false: left = [] } = Object.groupBy(
        this.#attached.get(at.stepNumber) ?? [],
        ({ state }) => `${canFold(stored, state)}` as const,
      );
      this.folded.push(...folded);
      const states = withAttached(
        stored,
        folded.map(({ state }) => state),
      );
      const { writerEpoch, commitTime } = at.commit;
      this.#added = {
        writerEpoch,
        commitTime: formatInstant(commitTime, 6),
        names: left.flatMap(({ state }) => (isKept(state) ? [state.name] : [])),
        sentBytes: frameBytes(at.sentBytes),
      };
      const step = { ...sent, states, contentStates: [], tensorStates: [], contentData: [], bytes: at.bytes };
      const written = folded.length === 0 ? at.bytes : encodedStep(step);
      if (!this.#open.hasRoomFor(step, written)) {
        const { sums } = this.#open;
        this.#full.push(this.#open.row(this.#added.commitTime));
        this.#open = new SegmentBuilder(this.#owner, sums, at.stepNumber);
      }
      this.#open.add(step, written);
    }
  }

  finish(): readonly SegmentRow[] {
    return [...this.#full, this.#open.row(this.#added!.commitTime)];
  }
}
