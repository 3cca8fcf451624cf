import type { Digest } from '../../../domain/ids.ts';
import { contentStates, type NewStep } from '../../../domain/step.ts';
import type { TrajectoryRef } from '../../../domain/trajectory.ts';
import type { EncodedState } from '../state/bytes.ts';
import type { ReferredStates } from '../state/referred_states.ts';
import type { Transaction } from '../transaction.ts';
import { bindDigest } from '../values.ts';
import { STEP_COLUMNS, type Sums, stepRow } from './row.ts';

const STEP_STATE_COLUMNS = [
  'tree',
  'trajectory',
  'step_number',
  'name',
  'namespace',
  'digest',
  'media_type',
  'size',
] as const;
const CONTENT_STATE_COLUMNS = ['tree', 'trajectory', 'step_number', 'digest', 'namespace'] as const;

/** Gathers the rows of new steps and of their references to states in one transaction, and writes them in few statements. */
export class StepWriter {
  private readonly tx: Transaction;
  private readonly now: string;
  private readonly referred: ReferredStates;
  private readonly steps: unknown[][] = [];
  private readonly stepStates: unknown[][] = [];
  private readonly contentStates: unknown[][] = [];

  /** `referred` must have looked up the states that the steps refer to. */
  constructor(tx: Transaction, now: string, referred: ReferredStates) {
    this.tx = tx;
    this.now = now;
    this.referred = referred;
  }

  /** Returns the first digest of a step that is neither stored nor inline. */
  missingState(namespace: string, step: NewStep, inline: ReadonlySet<Digest>): Digest | undefined {
    const sizes = this.referred.sizes(namespace);
    return statesOf(step).find((digest) => !inline.has(digest) && !sizes.has(digest));
  }

  /** Adds accepted steps in order. Returns the sums after them. */
  add(
    namespace: string,
    ref: TrajectoryRef,
    writerEpoch: bigint,
    before: Sums,
    steps: readonly NewStep[],
    inline: readonly EncodedState[],
  ): Sums {
    this.referred.add(namespace, inline);
    const sizes = this.referred.sizes(namespace);
    let sums = before;
    for (const step of steps) {
      const row = stepRow(namespace, ref, writerEpoch, sums, step, sizes, this.now);
      sums = row.sums;
      this.steps.push(row.values);
      this.addStates(namespace, ref, step);
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
    this.referred.add(namespace, inline);
    return this.addState(namespace, ref, stepNumber, state);
  }

  /** Writes all rows, states first. Errors: those of `ReferredStates.write`. */
  async write(wait: 'briefly' | 'bounded' = 'bounded'): Promise<void> {
    await this.referred.write(this.now, wait);
    await Promise.all([
      this.tx.engine.insertRows(this.tx.db, 'steps', STEP_COLUMNS, this.steps),
      this.tx.engine.insertRows(this.tx.db, 'step_states', STEP_STATE_COLUMNS, this.stepStates),
      this.tx.engine.insertRows(this.tx.db, 'content_states', CONTENT_STATE_COLUMNS, this.contentStates),
    ]);
  }

  private addStates(namespace: string, ref: TrajectoryRef, step: NewStep): void {
    for (const state of step.states) this.addState(namespace, ref, step.stepNumber, state);
    for (const digest of contentStates(step)) {
      this.referred.use(namespace, digest);
      this.contentStates.push([ref.tree, ref.key, step.stepNumber, bindDigest(digest), namespace]);
    }
  }

  private addState(
    namespace: string,
    ref: TrajectoryRef,
    stepNumber: bigint,
    { name, digest, mediaType }: NewStep['states'][number],
  ): number {
    const size = this.referred.use(namespace, digest);
    this.stepStates.push([ref.tree, ref.key, stepNumber, name, namespace, bindDigest(digest), mediaType, BigInt(size)]);
    return size;
  }
}

/** Returns the digests of all states that a step refers to. */
export function statesOf(step: NewStep): Digest[] {
  return [...step.states.map(({ digest }) => digest), ...contentStates(step)];
}
