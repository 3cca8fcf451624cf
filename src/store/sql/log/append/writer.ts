import { type AnabranchError, invalidField, stateNotFound } from '../../../../domain/errors.ts';
import type { Digest } from '../../../../domain/ids.ts';
import { formatInstant, type Instant } from '../../../../domain/instant.ts';
import { type AttachedState, hasRow, isSmall, type StateRef, type TensorState } from '../../../../domain/step.ts';
import { type PackedStep, rowStates } from '../../../../domain/step_codec/packed_step.ts';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { Engine } from '../../kit/engine.ts';
import type { Sums } from '../../kit/running_sums.ts';
import { ATTACHED_STATES, type SegmentRow, STATE_REFS, STEP_SCORES } from '../../kit/tables/steps.ts';
import type { RowOf } from '../../kit/tables/table.ts';
import type { Transaction } from '../../kit/transaction.ts';
import { bindDigest } from '../../kit/values.ts';
import { insertSegments } from '../segments.ts';
import type { EncodedState } from '../states/bytes.ts';
import type { ReferredStates } from '../states/referred_states.ts';
import type { CompressedSegments } from './compressed_segments.ts';
import { SegmentBuilder, StepEncoder, type StepOwner } from './segment_builder.ts';

interface ScoredOwner extends StepOwner {
  readonly scoredMetrics: readonly string[];
}

export interface StepWriterOptions {
  readonly encoder?: StepEncoder | undefined;
  /** Copies of segments that may be written. */
  readonly compressed?: CompressedSegments | undefined;
}

/**
 * Gathers the rows of new steps and of their references to states in one transaction, and writes them in few
 * statements. The steps of a trajectory become one segment, or several if they are large.
 */
export class StepWriter {
  readonly #tx: Transaction;
  readonly #referred: ReferredStates;
  readonly #encoder: StepEncoder;
  readonly #compressed: CompressedSegments | undefined;
  readonly #open = new Map<bigint, SegmentBuilder>();
  readonly #segments: SegmentRow[] = [];
  readonly #stateRefs: RowOf<typeof STATE_REFS>[] = [];
  readonly #attachedStates: RowOf<typeof ATTACHED_STATES>[] = [];
  readonly #scores: RowOf<typeof STEP_SCORES>[] = [];

  /** `referred` must have looked up the states that the steps refer to. */
  constructor(tx: Transaction, referred: ReferredStates, { encoder, compressed }: StepWriterOptions = {}) {
    this.#tx = tx;
    this.#referred = referred;
    this.#encoder = encoder ?? new StepEncoder();
    this.#compressed = compressed;
  }

  /** The segments, once they are written. */
  get rows(): readonly SegmentRow[] {
    return this.#segments;
  }

  /** Returns the first digest of a step that is neither stored nor inline. */
  missingState(namespace: string, step: PackedStep, inline: Pick<ReadonlySet<Digest>, 'has'>): Digest | undefined {
    const sizes = this.#referred.sizes(namespace);
    return rowStates(step).find((digest) => !inline.has(digest) && !sizes.has(digest));
  }

  /**
   * Returns why a step cannot be stored: it names a state that is neither stored nor inline, or a state that does not
   * have the size of a tensor. `inline` has the sizes of inline states.
   */
  faultOf(namespace: string, step: PackedStep, inline: ReadonlyMap<Digest, number>): AnabranchError | undefined {
    const missing = this.missingState(namespace, step, inline);
    if (missing !== undefined) return stateNotFound(missing);
    const stored = this.#referred.sizes(namespace);
    const sizeOf = (digest: Digest) => inline.get(digest) ?? stored.get(digest);
    const wrong = step.tensorStates.find(({ digest, bytes }) => sizeOf(digest) !== bytes);
    return wrong && tensorSizeWrong(step.stepNumber, wrong, sizeOf(wrong.digest));
  }

  /** Adds accepted steps in order. Returns the sums after them. */
  add(owner: ScoredOwner, before: Sums, steps: readonly PackedStep[], inline: readonly EncodedState[]): Sums {
    const { namespace } = owner;
    this.#referred.add(namespace, inline);
    const sizes = this.#referred.sizes(namespace);
    let sums = before;
    for (const step of steps) {
      const stored = this.#encoder.encode(step, sizes);
      let segment = this.#open.get(owner.key);
      if (segment?.writerEpoch !== owner.writerEpoch || !segment.hasRoomFor(step, stored)) {
        if (segment !== undefined) this.#segments.push(segment.row(this.#tx.now, this.#compressed));
        segment = new SegmentBuilder(owner, sums, step.stepNumber);
        this.#open.set(owner.key, segment);
      }
      segment.add(step, stored);
      sums = segment.sums;
      this.#addStates(namespace, owner, step);
      if (owner.scoredMetrics.length > 0) this.#addScores(owner, step);
    }
    return sums;
  }

  /** Adds a state to a stored step (W10). One that was pruned elsewhere (S13) has no bytes. Returns the reference. */
  attach(
    namespace: string,
    ref: TrajectoryRef,
    stepNumber: bigint,
    state: AttachedState,
    inline: readonly EncodedState[],
  ): StateRef {
    this.#referred.add(namespace, inline);
    const { name, digest, mediaType, data, attachTime, prunedTime } = state;
    const small = isSmall(state) ? data : undefined;
    const size = hasRow(state)
      ? this.#referTo(namespace, ref, stepNumber, name, digest)
      : (small?.length ?? state.size);
    this.#attachedStates.push({
      ...keyColumnsOf(namespace, ref, stepNumber, name),
      digest: bindDigest(digest),
      media_type: mediaType,
      size: BigInt(size),
      data: small ?? null,
      pruned_time: timeOrNull(prunedTime),
      attach_time: formatInstant(attachTime, 6),
    });
    return { name, digest, mediaType, size, attachTime };
  }

  /** Writes all rows, states first. Errors: those of `ReferredStates.write`. */
  async write(wait: 'briefly' | 'bounded' = 'bounded'): Promise<void> {
    for (const segment of this.#open.values()) this.#segments.push(segment.row(this.#tx.now, this.#compressed));
    this.#open.clear();
    await this.#referred.write(wait);
    const finished = this.finished(this.#segments);
    const segments = finished instanceof Promise ? await finished : finished;
    await Promise.all([
      insertSegments(this.#tx, segments),
      this.#tx.engine.bulk.insert(this.#tx.db, STATE_REFS, this.#stateRefs),
      this.#tx.engine.bulk.insert(this.#tx.db, ATTACHED_STATES, this.#attachedStates),
      this.#tx.engine.bulk.insert(this.#tx.db, STEP_SCORES, this.#scores),
    ]);
  }

  protected get engine(): Engine {
    return this.#tx.engine;
  }

  /** Returns the segments as they are inserted. */
  protected finished(segments: readonly SegmentRow[]): readonly SegmentRow[] | Promise<readonly SegmentRow[]> {
    return segments;
  }

  #addStates(namespace: string, ref: TrajectoryRef, { stepNumber, states, contentStates }: PackedStep): void {
    for (const state of states) {
      if (hasRow(state)) this.#referTo(namespace, ref, stepNumber, state.name, state.digest);
    }
    for (const digest of contentStates) this.#referTo(namespace, ref, stepNumber, OF_CONTENT, digest);
  }

  #addScores({ tree, key, namespace, scoredMetrics }: ScoredOwner, { stepNumber, metrics }: PackedStep): void {
    for (const metric of scoredMetrics) {
      const value = metrics.get(metric);
      if (value === undefined || Number.isNaN(value)) continue;
      this.#scores.push({ tree, trajectory: key, step_number: stepNumber, metric, namespace, value });
    }
  }

  /** Returns the size of the state. */
  #referTo(namespace: string, ref: TrajectoryRef, stepNumber: bigint, name: string, digest: Digest): number {
    this.#stateRefs.push({ ...keyColumnsOf(namespace, ref, stepNumber, name), state: bindDigest(digest) });
    return this.#referred.use(namespace, digest);
  }
}

function timeOrNull(time: Instant | undefined): string | null {
  return time === undefined ? null : formatInstant(time, 6);
}

/** Returns the sizes of inline states. */
export function sizesOf(inline: readonly EncodedState[]): ReadonlyMap<Digest, number> {
  const sizes = new Map<Digest, number>();
  for (const { digest, size } of inline) sizes.set(digest, size);
  return sizes;
}

/** FM4: the items of a tensor have as many bytes as dtype and shape say. */
function tensorSizeWrong(stepNumber: bigint, { digest, bytes }: TensorState, size: number | undefined): AnabranchError {
  return invalidField(
    'tensor.state_digest',
    `must name a state of ${bytes} bytes in step ${stepNumber}, as dtype and shape say; state ${digest} has ${size}`,
  );
}

/** Stored as the name of a reference by a content. No state has an empty name. */
const OF_CONTENT = '';

function keyColumnsOf(namespace: string, ref: TrajectoryRef, stepNumber: bigint, name: string) {
  return { tree: ref.tree, trajectory: ref.key, step_number: stepNumber, name, namespace };
}
