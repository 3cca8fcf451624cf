import { create } from '@bufbuild/protobuf';
import { type StepState, StepStateSchema, type Step as WireStep } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type { Step } from '../../src/domain/step.ts';
import { type NewSteps, withInlineStates } from '../../src/domain/step_codec/packed_step.ts';
import { packSteps } from '../../src/service/trajectory/step_in.ts';
import { fromStoredStep } from '../../src/service/trajectory/step_out.ts';

/** A state as a client gives it with a step: bytes, or the digest of a state put before, or both. */
export interface GivenState {
  readonly name: string;
  readonly data: Uint8Array | undefined;
  readonly digest: string;
  readonly mediaType: string;
}

/** A step as a client gives it. */
export interface GivenStep extends Omit<Step, 'states'> {
  readonly states: readonly GivenState[];
}

export function stepMessage(step: GivenStep): WireStep {
  const message = fromStoredStep({ ...step, states: [], commitTime: 0n, writerEpoch: 0n, rewardSum: 0 });
  message.states = step.states.map(stateMessage);
  return message;
}

export function stateMessage({ data, ...state }: GivenState): StepState {
  return create(StepStateSchema, data === undefined ? state : { ...state, data });
}

/** Returns steps as the server stores those of a frame. Throws what the frame is refused with. */
export function newSteps(steps: readonly GivenStep[]): NewSteps {
  return withInlineStates(packSteps(steps.map(stepMessage)));
}
