import { AnabranchError } from '../../../domain/errors.ts';
import { addReward, type StateRef, type Step, type StoredStep } from '../../../domain/step.ts';
import { DamagedStep } from '../../../domain/step_codec/damaged_step.ts';
import { StepFrames } from '../../../domain/step_codec/frames.ts';
import { readStep } from '../../../domain/step_codec/read.ts';
import { compareText } from '../../../domain/text_order.ts';
import type { StepView } from '../../contract/step.ts';
import type { SegmentRow } from '../tables/steps.ts';
import { readReal } from '../values.ts';
import type { Commit } from './commits.ts';
import { readBody } from './stored_body.ts';

/** Columns of a row of `segments` that its steps are read from. */
export type StoredSegment = Pick<
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

/** A step of a segment, with the sum of rewards along the lineage up to it. */
export interface SegmentStep {
  readonly step: Step;
  readonly rewardSum: number;
  /** Encoding of the step, after its length. */
  readonly frame: Uint8Array;
}

/**
 * Goes through the steps of a segment that are in [from, to), or only some of them, in order. Errors: STEP_CORRUPT. The
 * bytes of its contents are views of the body.
 */
export function* stepsIn(
  segment: StoredSegment,
  from: bigint,
  to: bigint,
  view: StepView = 'FULL',
  only?: ReadonlySet<bigint>,
): Generator<SegmentStep, void, undefined> {
  const { first_step_number: first, next_step_number: next } = segment;
  const body = readBody(first, segment);
  if (body === undefined) throw stepCorrupt(segment);
  let rewardSum = readReal(segment.reward_sum);
  let number = first;
  const frames = new StepFrames(body);
  try {
    for (let begin = 0; number < to && frames.next(); begin = frames.to, number += 1n) {
      const isWanted = number >= from && (only === undefined || only.has(number));
      // The rewards of all earlier steps of the row are needed for the sum.
      const step = readStep(body, frames.from, frames.to, isWanted ? view : 'BASIC');
      if (step.stepNumber !== number) throw new DamagedStep(`step ${step.stepNumber} at the place of step ${number}`);
      rewardSum = addReward(rewardSum, step.reward);
      if (isWanted) yield { step, rewardSum, frame: body.subarray(begin, frames.to) };
    }
  } catch (cause) {
    throw cause instanceof DamagedStep ? stepCorrupt(segment, cause) : cause;
  }
  if (number < to && number < next) throw stepCorrupt(segment);
}

/** Returns a step as it is returned to clients. */
export function storedStep(
  commit: Commit,
  { step, rewardSum }: SegmentStep,
  attached: readonly StateRef[] | undefined,
): StoredStep {
  const states = attached === undefined ? step.states : sortStates([...step.states, ...attached]);
  return { ...step, states, ...commit, rewardSum };
}

function sortStates(states: StateRef[]): StateRef[] {
  return states.sort((a, b) => compareText(a.name, b.name));
}

function stepCorrupt({ first_step_number: first, next_step_number: next }: StoredSegment, cause?: Error) {
  return new AnabranchError(
    'STEP_CORRUPT',
    `The stored bytes of steps ${first} to ${next - 1n} do not match their checksum: the storage is damaged. Restore the database from a backup. Other steps can be read.`,
    {
      metadata: { first_step_number: `${first}`, next_step_number: `${next}` },
      ...(cause === undefined ? {} : { cause }),
    },
  );
}
