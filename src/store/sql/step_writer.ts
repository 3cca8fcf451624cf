import type { Digest } from '../../domain/ids.ts';
import { addOwnReward, addReward, contentStates, type NewState, type NewStep } from '../../domain/step.ts';
import type { TrajectoryRef } from '../../domain/trajectory.ts';
import { bindActions, bindObservations, type StateSizes } from './content_json.ts';
import type { Engine, Tx } from './engine.ts';
import type { ReferredStates } from './referred_states.ts';
import { type EncodedBytes, encodeBytes } from './state_bytes.ts';
import { bindClientTime, bindDigest, bindMetrics, bindOptionalReal, bindReal, flag } from './values.ts';

/** A state that came inline, ready to be stored. Encoded before the transaction begins, so that no lock waits for compression. */
export interface EncodedState extends EncodedBytes {
  readonly digest: Digest;
  readonly size: number;
}

export function encodeStates(states: readonly NewState[]): EncodedState[] {
  return states.map(({ digest, data }) => ({ digest, size: data.length, ...encodeBytes(data) }));
}

/** Running sums at a step: along the lineage, but for `branchRewardSum`. */
export interface Sums {
  readonly rewardSum: number;
  /** Of own steps alone. Undefined while none of them has a reward that counts. */
  readonly branchRewardSum: number | undefined;
  readonly byteSum: bigint;
}

export const STEP_COLUMNS = [
  'tree',
  'trajectory',
  'step_number',
  'namespace',
  'reward',
  'terminated',
  'truncated',
  'writer_epoch',
  'reward_sum',
  'byte_sum',
  'commit_time',
  'start_time',
  'end_time',
  'content_digest',
  'metrics',
  'actions',
  'observations',
  'info_json',
  'metadata_json',
] as const;
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

/** A row's fixed columns, roughly; what counts is that a step is never free. */
const ROW_BYTES = 128;

/** A row of `steps`, and the sums after it. */
export interface StepRow {
  /** In the order of `STEP_COLUMNS`. */
  readonly values: unknown[];
  readonly sums: Sums;
}

export function stepRow(
  namespace: string,
  ref: TrajectoryRef,
  writerEpoch: bigint,
  before: Sums,
  step: NewStep,
  sizes: StateSizes,
  commitTime: string | null,
): StepRow {
  const actions = bindActions(step.actions, sizes);
  const observations = bindObservations(step.observations, sizes);
  const metrics = bindMetrics(step.metrics);
  const rewardSum = addReward(before.rewardSum, step.reward);
  const branchRewardSum = addOwnReward(before.branchRewardSum, step.reward);
  const byteSum =
    before.byteSum +
    BigInt(
      ROW_BYTES +
        Buffer.byteLength(actions) +
        Buffer.byteLength(observations) +
        Buffer.byteLength(metrics) +
        Buffer.byteLength(step.infoJson) +
        Buffer.byteLength(step.metadataJson),
    );
  const values = [
    ref.tree,
    ref.key,
    step.stepNumber,
    namespace,
    bindOptionalReal(step.reward),
    flag(step.terminated),
    flag(step.truncated),
    writerEpoch,
    bindReal(rewardSum),
    byteSum,
    commitTime,
    bindClientTime(step.startTime),
    bindClientTime(step.endTime),
    bindDigest(step.contentDigest),
    metrics,
    actions,
    observations,
    step.infoJson,
    step.metadataJson,
  ];
  return { values, sums: { rewardSum, branchRewardSum, byteSum } };
}

/** Gathers the rows of new steps and of their references to states in one transaction, and writes them in few statements. */
export class StepWriter {
  private readonly engine: Engine;
  private readonly tx: Tx;
  private readonly now: string;
  private readonly referred: ReferredStates;
  private readonly steps: unknown[][] = [];
  private readonly stepStates: unknown[][] = [];
  private readonly contentStates: unknown[][] = [];

  /** `referred` has looked up the states that the steps refer to. */
  constructor(engine: Engine, tx: Tx, now: string, referred: ReferredStates) {
    this.engine = engine;
    this.tx = tx;
    this.now = now;
    this.referred = referred;
  }

  /** Returns the first digest that a step refers to and that is neither stored nor among the inline ones. */
  missingState(namespace: string, step: NewStep, inline: ReadonlySet<Digest>): Digest | undefined {
    const sizes = this.referred.sizes(namespace);
    return statesOf(step).find((digest) => !inline.has(digest) && !sizes.has(digest));
  }

  /** Adds steps that are decided, in order. Returns the sums after them. */
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

  /** Adds a state to a step that is stored already (W10). Returns the state's size. */
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

  /** Writes everything, states first. Errors: those of `ReferredStates.write`. */
  async write(wait: 'briefly' | 'bounded' = 'bounded'): Promise<void> {
    await this.referred.write(this.now, wait);
    await Promise.all([
      this.engine.insertRows(this.tx, 'steps', STEP_COLUMNS, this.steps),
      this.engine.insertRows(this.tx, 'step_states', STEP_STATE_COLUMNS, this.stepStates),
      this.engine.insertRows(this.tx, 'content_states', CONTENT_STATE_COLUMNS, this.contentStates),
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

/** Digests of all states that a step refers to. */
export function statesOf(step: NewStep): Digest[] {
  return [...step.states.map(({ digest }) => digest), ...contentStates(step)];
}
