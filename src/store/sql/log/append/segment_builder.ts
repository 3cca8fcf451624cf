import { AnabranchError } from '../../../../domain/errors.ts';
import type { Instant } from '../../../../domain/instant.ts';
import { addOwnReward, addReward, isKept } from '../../../../domain/step.ts';
import { bodyOf, frameBytes } from '../../../../domain/step_codec/frames.ts';
import type { PackedStep } from '../../../../domain/step_codec/packed_step.ts';
import { SmallStates, withStateSizes, writeSmallStates } from '../../../../domain/step_codec/small_states.ts';
import { WireWriter } from '../../../../domain/step_codec/wire_writer.ts';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import { largerReward, STEP_BYTES, type Sums, smallerReward } from '../../kit/running_sums.ts';
import type { SegmentRow } from '../../kit/tables/steps.ts';
import { bindOptionalReal, bindReal, readReal } from '../../kit/values.ts';
import { type CommitRun, commitColumns, commitRuns, type StoredCommits } from '../read/commits.ts';
import { type Segment, SegmentCursor } from '../read/segment.ts';
import { labelName, NO_RUNS, runsUntil, StepRuns } from '../read/step_runs.ts';
import { indexedBody, plainBody, readStates } from '../read/stored_body.ts';
import type { CompressedSegments } from './compressed_segments.ts';
import { addMetrics, type MetricSum } from './metric_sums.ts';
import { SegmentRoom } from './segment_room.ts';

/** The trajectory that steps are appended to. */
export interface StepOwner extends TrajectoryRef {
  readonly namespace: string;
  readonly writerEpoch: bigint;
  /** Set if the steps were stored before, in another database. */
  readonly restored?: RestoredSteps | undefined;
}

/** What was stored with steps after a client had sent them. */
export interface RestoredSteps {
  commitOf(stepNumber: bigint): { readonly writerEpoch: bigint; readonly commitTime: string };
  /** Names of the states that were attached to the step and have rows of `attached_states`, without pruned ones. */
  attachedTo(stepNumber: bigint): readonly string[];
  /** Bytes of the step after its length, as the client sent it. Undefined if nothing was added to it. */
  sentBytes(stepNumber: bigint): number | undefined;
}

/** Sizes of stored states by digest. */
export type StateSizes = ReadonlyMap<string, number>;

/** Encodes steps as they are stored. Most are stored as they are packed. Keeps one buffer for all others. */
export class StepEncoder {
  readonly #out = new WireWriter(4096);

  /** Returns the step with the sizes of stored states. */
  encode(step: PackedStep, sizes: StateSizes): Uint8Array {
    if (!namesStates(step)) return step.bytes;
    // An earlier call may have failed in the middle of a step.
    this.#out.clear();
    return withStateSizes(this.#out, step.bytes, sizes);
  }
}

/** Whether the encoding needs the sizes of stored states: clients need not send them. */
export function namesStates({ states, contentStates }: PackedStep): boolean {
  return contentStates.length > 0 || states.some(({ size, data }) => size === 0 && data === undefined);
}

/** Collects consecutive steps of one trajectory for a segment. */
export class SegmentBuilder {
  readonly #owner: StepOwner;
  readonly #before: Sums;
  readonly #first: bigint;
  readonly #steps: Uint8Array[] = [];
  readonly #states: PackedStep['states'][number][] = [];
  #stateNames: StepRuns | undefined;
  #labels: StepRuns | undefined;
  readonly #rewards: (number | string | null)[] = [];
  #ends: Record<number, number> | undefined;
  #metrics: Map<string, MetricSum> | undefined;
  #commits: CommitRun[] | undefined;
  #minReward: number | undefined;
  #maxReward: number | undefined;
  readonly #room = new SegmentRoom();
  #sums: Sums;

  constructor(owner: StepOwner, before: Sums, first: bigint) {
    this.#owner = owner;
    this.#before = before;
    this.#first = first;
    this.#sums = before;
  }

  /** Epoch of all its steps. */
  get writerEpoch(): bigint {
    return this.#owner.writerEpoch;
  }

  /** Sums after the last step. */
  get sums(): Sums {
    return this.#sums;
  }

  /** `stored`: the step as it is stored. */
  hasRoomFor(step: PackedStep, stored: Uint8Array): boolean {
    return this.#room.has(step, stored);
  }

  add(step: PackedStep, stored: Uint8Array): void {
    const index = this.#steps.length;
    this.#steps.push(stored);
    this.#room.take(step, stored);
    this.#rewards.push(rewardJson(step.reward));
    this.#minReward = smallerReward(this.#minReward, step.reward);
    this.#maxReward = largerReward(this.#maxReward, step.reward);
    if (step.terminated || step.truncated) {
      this.#ends ??= {};
      this.#ends[index] = (step.terminated ? 1 : 0) + (step.truncated ? 2 : 0);
    }
    if (step.metrics.size > 0) {
      this.#metrics ??= new Map();
      addMetrics(this.#metrics, step.metrics);
    }
    for (const state of step.states) {
      this.#states.push(state);
      // Only a step that is verified or imported can have a pruned state.
      if (!isKept(state)) continue;
      this.#stateNames ??= new StepRuns();
      this.#stateNames.add(index, state.name);
    }
    for (const [key, value] of step.labels) {
      this.#labels ??= new StepRuns();
      this.#labels.add(index, labelName(key, value));
    }
    if (this.#owner.restored !== undefined) this.#restore(index, step.stepNumber, this.#owner.restored);
    this.#sums = sumsAfter(this.#sums, step, this.#owner.restored?.sentBytes(step.stepNumber) ?? frameBytes(stored));
  }

  #restore(index: number, stepNumber: bigint, restored: RestoredSteps): void {
    for (const name of restored.attachedTo(stepNumber)) {
      this.#stateNames ??= new StepRuns();
      this.#stateNames.add(index, name);
    }
    const { writerEpoch, commitTime } = restored.commitOf(stepNumber);
    this.#commits ??= [];
    this.#commits.push([index, Number(writerEpoch), commitTime]);
  }

  #commitColumns(commitTime: string): StoredCommits {
    if (this.#commits !== undefined) return commitColumns(this.#commits, this.#steps.length);
    const { writerEpoch } = this.#owner;
    return { writer_epoch: writerEpoch, commit_time: commitTime, commits: null, last_commit_time: null };
  }

  /** `compressed` has copies of segments that may be this one. */
  row(commitTime: string, compressed?: CompressedSegments): SegmentRow {
    const body = bodyOf(this.#steps);
    const states = writeSmallStates(this.#states);
    const plain = () => ({ ...plainBody(this.#first, body), states, states_bytes: null });
    return {
      tree: this.#owner.tree,
      trajectory: this.#owner.key,
      first_step_number: this.#first,
      next_step_number: this.#first + BigInt(this.#steps.length),
      namespace: this.#owner.namespace,
      ...this.#commitColumns(commitTime),
      reward_sum: bindReal(this.#before.rewardSum),
      byte_sum: this.#before.byteSum,
      rewards: JSON.stringify(this.#rewards),
      min_reward: bindOptionalReal(this.#minReward),
      max_reward: bindOptionalReal(this.#maxReward),
      ends: this.#ends === undefined ? '{}' : JSON.stringify(this.#ends),
      metric_sums: this.#metrics === undefined ? '{}' : JSON.stringify(Object.fromEntries(this.#metrics)),
      ...(compressed?.of(this.#owner.key, this.#first, body, states) ?? plain()),
      state_names: this.#stateNames?.toJson() ?? NO_RUNS,
      labels: this.#labels?.toJson() ?? NO_RUNS,
    };
  }
}

type CutColumns = 'rewards' | 'ends' | 'state_names' | 'labels' | 'states' | 'states_bytes';

/**
 * Returns what changes in a segment that loses its steps from `end` on, or undefined if the segment is damaged. `end`
 * must be a step of the segment, not the first.
 */
export function segmentUntil(row: Segment & Pick<SegmentRow, CutColumns>, end: bigint) {
  const { first_step_number: first } = row;
  const count = Number(end - first);
  const kept: Uint8Array[] = [];
  const metrics = new Map<string, MetricSum>();
  const states = readStates(row);
  const small = new SmallStates(states);
  try {
    for (const steps = new SegmentCursor(row); kept.length < count && steps.next(); ) {
      kept.push(steps.bytes);
      const step = steps.read('BASIC');
      addMetrics(metrics, step.metrics);
      for (const { size } of step.states) small.next(size);
    }
  } catch (error) {
    if (error instanceof AnabranchError && error.reason === 'STEP_CORRUPT') return undefined;
    throw error;
  }
  const body = bodyOf(kept);
  const ends = Object.entries(JSON.parse(row.ends) as Record<string, number>);
  const rewards = (JSON.parse(row.rewards) as (number | string | null)[]).slice(0, count);
  const known = rewards.flatMap((reward) => (reward === null ? [] : [readReal(reward)]));
  return {
    next_step_number: end,
    rewards: JSON.stringify(rewards),
    min_reward: bindOptionalReal(known.reduce(smallerReward, undefined)),
    max_reward: bindOptionalReal(known.reduce(largerReward, undefined)),
    ends: JSON.stringify(Object.fromEntries(ends.filter(([index]) => Number(index) < count))),
    metric_sums: JSON.stringify(Object.fromEntries(metrics)),
    ...commitColumns(
      commitRuns(row).filter(([index]) => index < count),
      count,
    ),
    ...indexedBody(first, body),
    state_names: runsUntil(row.state_names, count),
    labels: runsUntil(row.labels, count),
    states: states.subarray(0, small.length),
    states_bytes: null,
  };
}

function rewardJson(reward: number | undefined): number | string | null {
  if (reward === undefined) return null;
  return Number.isFinite(reward) ? reward : String(reward);
}

function sumsAfter(before: Sums, step: PackedStep, bytes: number): Sums {
  const timed = step.stepNumber > 0n && step.startTime !== undefined && step.endTime !== undefined;
  return {
    rewardSum: addReward(before.rewardSum, step.reward),
    branchRewardSum: addOwnReward(before.branchRewardSum, step.reward),
    minReward: smallerReward(before.minReward, step.reward),
    maxReward: largerReward(before.maxReward, step.reward),
    byteSum: before.byteSum + BigInt(STEP_BYTES + bytes),
    timedTurns: timed ? before.timedTurns + 1n : before.timedTurns,
    turnSeconds: timed ? before.turnSeconds + secondsOf(step.startTime, step.endTime) : before.turnSeconds,
  };
}

/** At least 0, because a clock may have been set back. */
function secondsOf(start: Instant, end: Instant): number {
  return Math.max(0, Number(end - start) / 1e9);
}
