import { AnabranchError } from '../../../../domain/errors.ts';
import { asSent, mayHaveAttached, mayHaveMarks, withAttached, withoutAttached } from '../../../../domain/pruning.ts';
import { addReward, type StateRef, type Step, type StoredStep } from '../../../../domain/step.ts';
import { DamagedStep } from '../../../../domain/step_codec/damaged_step.ts';
import { forwardStep, readReward } from '../../../../domain/step_codec/forward.ts';
import { StepFrames } from '../../../../domain/step_codec/frames.ts';
import { readStates, readStep } from '../../../../domain/step_codec/read.ts';
import { WireWriter } from '../../../../domain/step_codec/wire_writer.ts';
import { type Commit, writeStep } from '../../../../domain/step_codec/write.ts';
import type { StepView } from '../../../contract/step.ts';
import { free } from '../../kit/compression.ts';
import type { SegmentRow } from '../../kit/tables/steps.ts';
import { readReal } from '../../kit/values.ts';
import { Commits } from './commits.ts';
import { COMPRESSED, readBody } from './stored_body.ts';

/** Columns of a row of `segments` that its steps are read from. */
export type Segment = Pick<
  SegmentRow,
  | 'first_step_number'
  | 'next_step_number'
  | 'writer_epoch'
  | 'commit_time'
  | 'commits'
  | 'reward_sum'
  | 'checksum'
  | 'encoding'
  | 'body_bytes'
  | 'body'
>;

/**
 * Goes through the steps of a segment in order, without decoding more than their rewards:
 *
 *     for (const steps = new SegmentCursor(segment); steps.next(); ) steps.read('FULL');
 *
 * Verifies the checksum. Errors: STEP_CORRUPT.
 */
export class SegmentCursor {
  /** Number of the current step. Before the first step, the number before it. */
  stepNumber: bigint;
  reward: number | undefined;
  /** The sum of rewards along the lineage up to the current step. */
  rewardSum: number;
  readonly #commits: Commits;
  readonly #segment: Segment;
  readonly #body: Buffer;
  readonly #frames: StepFrames;
  /** Where the length of the current step begins. */
  #begin = 0;
  #mayHaveAttached: boolean | undefined;

  constructor(segment: Segment) {
    const { first_step_number: first, reward_sum } = segment;
    const body = readBody(first, segment);
    if (body === undefined) throw stepCorrupt(segment);
    this.#segment = segment;
    this.#commits = commitsOf(segment);
    this.#body = Buffer.from(body.buffer, body.byteOffset, body.byteLength);
    this.#frames = new StepFrames(this.#body);
    this.stepNumber = first - 1n;
    this.rewardSum = readReal(reward_sum);
  }

  /** Frees the decompressed steps. Nothing that was read of them may be used any more. */
  free(): void {
    if (this.#segment.encoding === COMPRESSED) free(this.#body);
  }

  /** Moves to the next step. Returns false at the end. */
  next(): boolean {
    const number = this.stepNumber + 1n;
    if (number >= this.#segment.next_step_number) return false;
    try {
      this.#begin = this.#frames.to;
      if (!this.#frames.next()) throw new DamagedStep(`there is no step ${number}`);
      this.reward = readReward(this.#body, this.#frames, number);
    } catch (cause) {
      throw this.#explained(cause);
    }
    this.stepNumber = number;
    this.rewardSum = addReward(this.rewardSum, this.reward);
    return true;
  }

  /** What the server set with the commit of the current step. All steps of a commit share the object. */
  get commit(): Commit {
    return this.#commits.of(this.stepNumber);
  }

  /** The encoding of the current step. */
  get bytes(): Buffer {
    return this.#body.subarray(this.#frames.from, this.#frames.to);
  }

  /** The same without marks of pruned states (S13) and attached states (W10): what the client sent. */
  get sentBytes(): Uint8Array {
    const { bytes } = this;
    return mayHaveMarks(bytes) || mayHaveAttached(bytes) ? encodedStep(asSent(this.read('FULL'))) : bytes;
  }

  /** The encoding of the current step without the states that were attached to it. */
  get bytesWithoutAttached(): Buffer {
    const { bytes } = this;
    // Most segments have none, and one search costs less than one in each step.
    this.#mayHaveAttached ??= mayHaveAttached(this.#body);
    return this.#mayHaveAttached && mayHaveAttached(bytes)
      ? Buffer.from(encodedStep(withoutAttached(this.read('FULL'))))
      : bytes;
  }

  /** Bytes that the current step takes in the row. */
  get frameBytes(): number {
    return this.#frames.to - this.#begin;
  }

  /** Decodes the current step. The bytes of its contents are views of the body. */
  read(view: StepView): Step {
    try {
      return readStep(this.#body, this.#frames.from, this.#frames.to, view);
    } catch (cause) {
      throw this.#explained(cause);
    }
  }

  /** Decodes only the states of the current step. */
  readStates(): readonly StateRef[] {
    try {
      return readStates(this.#body, this.#frames.from, this.#frames.to);
    } catch (cause) {
      throw this.#explained(cause);
    }
  }

  /** Writes what the client sent of the current step, as `writeStep` does, without decoding it. */
  forward(out: WireWriter, view: StepView): void {
    try {
      forwardStep(out, this.#body, this.#frames, view);
    } catch (cause) {
      throw this.#explained(cause);
    }
  }

  #explained(cause: unknown): unknown {
    return cause instanceof DamagedStep ? stepCorrupt(this.#segment, cause) : cause;
  }
}

/** Encodes a step as `writeStep` does. */
export function encodedStep(step: Step): Uint8Array {
  const out = new WireWriter(4096);
  writeStep(out, step);
  return out.take();
}

/** Returns the current step as it is returned to clients, with the states that were attached to it. */
export function storedStep(
  steps: SegmentCursor,
  attached: readonly StateRef[] | undefined,
  view: StepView,
): StoredStep {
  const step = steps.read(view);
  const states = attached === undefined ? step.states : withAttached(step.states, attached);
  return { ...step, states, ...steps.commit, rewardSum: steps.rewardSum };
}

function commitsOf(segment: Segment): Commits {
  try {
    return new Commits(segment);
  } catch (cause) {
    throw stepCorrupt(segment, cause as Error);
  }
}

function stepCorrupt({ first_step_number: first, next_step_number: next }: Segment, cause?: Error) {
  return new AnabranchError(
    'STEP_CORRUPT',
    `The stored bytes of steps ${first} to ${next - 1n} do not match their checksum: the storage is damaged. Restore the database from a backup. Other steps can be read.`,
    {
      metadata: { first_step_number: `${first}`, next_step_number: `${next}` },
      ...(cause === undefined ? {} : { cause }),
    },
  );
}
