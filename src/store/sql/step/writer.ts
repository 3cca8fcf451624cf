import type { Digest } from '../../../domain/ids.ts';
import { isSmall, type StateRef } from '../../../domain/step.ts';
import { type PackedStep, rowStates } from '../../../domain/step_codec/packed_step.ts';
import type { TrajectoryRef } from '../../../domain/trajectory.ts';
import type { EncodedState } from '../state/bytes.ts';
import type { ReferredStates } from '../state/referred_states.ts';
import { ATTACHED_STATES, CONTENT_STATES, SEGMENTS, STEP_SCORES, STEP_STATES } from '../tables/steps.ts';
import type { RowOf } from '../tables/table.ts';
import type { Transaction } from '../transaction.ts';
import { bindDigest } from '../values.ts';
import type { Sums } from './running_sums.ts';
import { SegmentBuilder, StepEncoder, type StepOwner } from './segment.ts';

interface ScoredOwner extends StepOwner {
  readonly scoredMetrics: readonly string[];
}

/**
 * Gathers the rows of new steps and of their references to states in one transaction, and writes them in few
 * statements. The steps of a trajectory become one row, or several if they are large.
 */
export class StepWriter {
  readonly #tx: Transaction;
  readonly #referred: ReferredStates;
  readonly #encoder: StepEncoder;
  readonly #open = new Map<bigint, SegmentBuilder>();
  readonly #segments: RowOf<typeof SEGMENTS>[] = [];
  readonly #stepStates: RowOf<typeof STEP_STATES>[] = [];
  readonly #attachedStates: RowOf<typeof ATTACHED_STATES>[] = [];
  readonly #contentStates: RowOf<typeof CONTENT_STATES>[] = [];
  readonly #scores: RowOf<typeof STEP_SCORES>[] = [];

  /** `referred` must have looked up the states that the steps refer to. */
  constructor(tx: Transaction, referred: ReferredStates, encoder = new StepEncoder()) {
    this.#tx = tx;
    this.#referred = referred;
    this.#encoder = encoder;
  }

  /** Returns the first digest of a step that is neither stored nor inline. */
  missingState(namespace: string, step: PackedStep, inline: ReadonlySet<Digest>): Digest | undefined {
    const sizes = this.#referred.sizes(namespace);
    return rowStates(step).find((digest) => !inline.has(digest) && !sizes.has(digest));
  }

  /** Adds accepted steps in order. Returns the sums after them. */
  add(owner: ScoredOwner, before: Sums, steps: readonly PackedStep[], inline: readonly EncodedState[]): Sums {
    const { namespace } = owner;
    this.#referred.add(namespace, inline);
    const sizes = this.#referred.sizes(namespace);
    let sums = before;
    for (const step of steps) {
      const frame = this.#encoder.encode(step, sizes);
      let segment = this.#open.get(owner.key);
      if (segment?.hasRoomFor(step, frame) !== true) {
        if (segment !== undefined) this.#segments.push(segment.row(this.#tx.now));
        segment = new SegmentBuilder(owner, sums, step.stepNumber);
        this.#open.set(owner.key, segment);
      }
      segment.add(step, frame);
      sums = segment.sums;
      this.#addStates(namespace, owner, step);
      if (owner.scoredMetrics.length > 0) this.#addScores(owner, step);
    }
    return sums;
  }

  /** Adds a state to a stored step (W10). Returns the reference. */
  attach(
    namespace: string,
    ref: TrajectoryRef,
    stepNumber: bigint,
    state: StateRef,
    inline: readonly EncodedState[],
  ): StateRef {
    this.#referred.add(namespace, inline);
    const row = isSmall(state)
      ? stepStateRow(namespace, ref, stepNumber, state)
      : this.#addState(namespace, ref, stepNumber, state);
    this.#attachedStates.push({ ...row, data: isSmall(state) ? state.data : null });
    return { name: state.name, digest: state.digest, mediaType: state.mediaType, size: Number(row.size) };
  }

  /** Writes all rows, states first. Errors: those of `ReferredStates.write`. */
  async write(wait: 'briefly' | 'bounded' = 'bounded'): Promise<void> {
    for (const segment of this.#open.values()) this.#segments.push(segment.row(this.#tx.now));
    this.#open.clear();
    await this.#referred.write(wait);
    await Promise.all([
      this.#tx.engine.insertRows(this.#tx.db, SEGMENTS, this.#segments),
      this.#tx.engine.insertRows(this.#tx.db, STEP_STATES, this.#stepStates),
      this.#tx.engine.insertRows(this.#tx.db, ATTACHED_STATES, this.#attachedStates),
      this.#tx.engine.insertRows(this.#tx.db, CONTENT_STATES, this.#contentStates),
      this.#tx.engine.insertRows(this.#tx.db, STEP_SCORES, this.#scores),
    ]);
  }

  #addStates(namespace: string, ref: TrajectoryRef, step: PackedStep): void {
    for (const state of step.states) {
      if (!isSmall(state)) this.#addState(namespace, ref, step.stepNumber, state);
    }
    for (const digest of step.contentStates) {
      this.#referred.use(namespace, digest);
      this.#contentStates.push({
        tree: ref.tree,
        trajectory: ref.key,
        step_number: step.stepNumber,
        digest: bindDigest(digest),
        namespace,
      });
    }
  }

  #addScores({ tree, key, namespace, scoredMetrics }: ScoredOwner, { stepNumber, metrics }: PackedStep): void {
    for (const metric of scoredMetrics) {
      const value = metrics.get(metric);
      if (value === undefined || Number.isNaN(value)) continue;
      this.#scores.push({ tree, trajectory: key, step_number: stepNumber, metric, namespace, value });
    }
  }

  #addState(namespace: string, ref: TrajectoryRef, stepNumber: bigint, state: StateRef): RowOf<typeof STEP_STATES> {
    const size = this.#referred.use(namespace, state.digest);
    const row = stepStateRow(namespace, ref, stepNumber, { ...state, size });
    this.#stepStates.push(row);
    return row;
  }
}

function stepStateRow(
  namespace: string,
  ref: TrajectoryRef,
  stepNumber: bigint,
  { name, digest, mediaType, size }: StateRef,
): RowOf<typeof STEP_STATES> {
  return {
    tree: ref.tree,
    trajectory: ref.key,
    step_number: stepNumber,
    name,
    namespace,
    digest: bindDigest(digest),
    media_type: mediaType,
    size: BigInt(size),
  };
}
