import type { Digest } from '../../../domain/ids.ts';
import { contentStates, type NewStep } from '../../../domain/step.ts';
import type { TrajectoryRef } from '../../../domain/trajectory.ts';
import type { EncodedState } from '../state/bytes.ts';
import type { ReferredStates } from '../state/referred_states.ts';
import { CONTENT_STATES, STEP_STATES, STEPS } from '../tables/steps.ts';
import type { RowOf } from '../tables/table.ts';
import type { Transaction } from '../transaction.ts';
import { bindDigest } from '../values.ts';

import { type StepOwner, type Sums, stepRow } from './row.ts';

/**
 * Gathers the rows of new steps and of their references to states in one transaction, and writes them in few
 * statements.
 */
export class StepWriter {
  readonly #tx: Transaction;
  readonly #referred: ReferredStates;
  readonly #steps: RowOf<typeof STEPS>[] = [];
  readonly #stepStates: RowOf<typeof STEP_STATES>[] = [];
  readonly #contentStates: RowOf<typeof CONTENT_STATES>[] = [];

  /** `referred` must have looked up the states that the steps refer to. */
  constructor(tx: Transaction, referred: ReferredStates) {
    this.#tx = tx;
    this.#referred = referred;
  }

  /** Returns the first digest of a step that is neither stored nor inline. */
  missingState(namespace: string, step: NewStep, inline: ReadonlySet<Digest>): Digest | undefined {
    const sizes = this.#referred.sizes(namespace);
    return statesOf(step).find((digest) => !inline.has(digest) && !sizes.has(digest));
  }

  /** Adds accepted steps in order. Returns the sums after them. */
  add(owner: StepOwner, before: Sums, steps: readonly NewStep[], inline: readonly EncodedState[]): Sums {
    const { namespace } = owner;
    this.#referred.add(namespace, inline);
    const sizes = this.#referred.sizes(namespace);
    const { now } = this.#tx;
    let sums = before;
    for (const step of steps) {
      const added = stepRow(owner, sums, step, sizes, now);
      sums = added.sums;
      this.#steps.push(added.row);
      this.#addStates(namespace, owner, step);
    }
    return sums;
  }

  /** Adds a state to a stored step (W10). Returns the state's size. */
  attach(
    namespace: string,
    ref: TrajectoryRef,
    stepNumber: bigint,
    state: NewStep['states'][number],
    inline: readonly EncodedState[],
  ): number {
    this.#referred.add(namespace, inline);
    return this.#addState(namespace, ref, stepNumber, state);
  }

  /** Writes all rows, states first. Errors: those of `ReferredStates.write`. */
  async write(wait: 'briefly' | 'bounded' = 'bounded'): Promise<void> {
    await this.#referred.write(wait);
    await Promise.all([
      this.#tx.engine.insertRows(this.#tx.db, STEPS, this.#steps),
      this.#tx.engine.insertRows(this.#tx.db, STEP_STATES, this.#stepStates),
      this.#tx.engine.insertRows(this.#tx.db, CONTENT_STATES, this.#contentStates),
    ]);
  }

  #addStates(namespace: string, ref: TrajectoryRef, step: NewStep): void {
    for (const state of step.states) this.#addState(namespace, ref, step.stepNumber, state);
    for (const digest of contentStates(step)) {
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

  #addState(
    namespace: string,
    ref: TrajectoryRef,
    stepNumber: bigint,
    { name, digest, mediaType }: NewStep['states'][number],
  ): number {
    const size = this.#referred.use(namespace, digest);
    this.#stepStates.push({
      tree: ref.tree,
      trajectory: ref.key,
      step_number: stepNumber,
      name,
      namespace,
      digest: bindDigest(digest),
      media_type: mediaType,
      size: BigInt(size),
    });
    return size;
  }
}

/** Returns the digests of all states that a step refers to. */
export function statesOf(step: NewStep): Digest[] {
  return [...step.states.map(({ digest }) => digest), ...contentStates(step)];
}
