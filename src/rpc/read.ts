import { create } from '@bufbuild/protobuf';
import type { MethodImpl } from '@connectrpc/connect';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  type ReadStepsRequest,
  type ReadStepsResponse,
  ReadStepsResponseSchema,
  TrajectoryService,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { Call } from '../service/method.ts';
import { fromStoredStep } from '../service/trajectory/step_out.ts';
import { readSteps as readStepsOf } from '../stream/steps/read.ts';
import type { StepsRead } from '../stream/steps/steps_read.ts';
import { serverStream, type Wire } from './call.ts';

/** The read stream: one message for each page of the use case, which ends pages at a segment's border and well below 1 MiB. */
export function readSteps(wire: Wire): MethodImpl<typeof TrajectoryService.method.readSteps> {
  const handle = async function* (request: ReadStepsRequest, call: Call) {
    const reading = readStepsOf(call.app, call.caller, {
      trajectoryId: request.trajectoryId,
      startStepNumber: request.startStepNumber,
      endStepNumber: request.endStepNumber,
      view: request.view === View.BASIC ? 'BASIC' : 'FULL',
      follow: request.follow,
      signal: call.signal,
    });
    for await (const read of reading) yield fromStepsRead(read);
  };
  const resumeAt = ({ nextStepNumber, steps }: ReadStepsResponse) => nextStepNumber - BigInt(steps.length);
  return serverStream(wire, TrajectoryService.method.readSteps, handle, { resumeAt, isLarge: hasManySteps });
}

/** Encoding fewer steps takes less time than waiting for a turn. */
const MANY_STEPS = 32;

export function hasManySteps({ steps }: { readonly steps: readonly unknown[] }): boolean {
  return steps.length >= MANY_STEPS;
}

/** Those who follow live are given the same steps, and so the same answer. */
const made = new WeakMap<StepsRead['steps'], ReadStepsResponse>();

function fromStepsRead(read: StepsRead): ReadStepsResponse {
  const { nextStepNumber, caughtUp, sealed } = read;
  const known = made.get(read.steps);
  if (known?.nextStepNumber === nextStepNumber && known.caughtUp === caughtUp && known.sealed === sealed) return known;
  const answer = create(ReadStepsResponseSchema);
  answer.trajectoryId = read.trajectoryId;
  for (const step of read.steps) answer.steps.push(fromStoredStep(step));
  answer.nextStepNumber = nextStepNumber;
  answer.caughtUp = caughtUp;
  answer.sealed = sealed;
  made.set(read.steps, answer);
  return answer;
}
