import { create } from '@bufbuild/protobuf';
import {
  type ReadStepsResponse,
  ReadStepsResponseSchema,
  type TrajectoryService,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { StepsRead } from '../../stream/steps/read.ts';
import { readSteps as readStepsOf } from '../../stream/steps/read.ts';
import { toView } from '../convert/values.ts';
import type { ServerStream } from '../method.ts';
import { fromStoredStep } from './step_out.ts';

/** Reads steps (RD1), and follows them (RD2). */
export const readSteps: ServerStream<typeof TrajectoryService.method.readSteps> = {
  async *messages({ trajectoryId, startStepNumber, endStepNumber, view, follow }, { app, caller, signal }) {
    const args = { trajectoryId, startStepNumber, endStepNumber, view: toView(view, 'FULL'), follow, signal };
    for await (const read of readStepsOf(app, caller, args)) yield fromStepsRead(read);
  },
  resumeAt: ({ nextStepNumber, steps }) => nextStepNumber - BigInt(steps.length),
  isLarge: hasManySteps,
};

/**
 * From this number on, a response waits for an encoding slot (`isLarge`). Encoding fewer steps takes less time than
 * waiting.
 */
const MANY_STEPS = 32;

export function hasManySteps({ steps }: { readonly steps: readonly unknown[] }): boolean {
  return steps.length >= MANY_STEPS;
}

/** Caches the response of a page: live followers share pages. */
const shared = new WeakMap<StepsRead['steps'], ReadStepsResponse>();

function fromStepsRead(read: StepsRead): ReadStepsResponse {
  const { nextStepNumber, caughtUp, sealed } = read;
  const known = shared.get(read.steps);
  if (known?.nextStepNumber === nextStepNumber && known.caughtUp === caughtUp && known.sealed === sealed) return known;
  const answer = create(ReadStepsResponseSchema);
  answer.trajectoryId = read.trajectoryId;
  for (const step of read.steps) answer.steps.push(fromStoredStep(step));
  answer.nextStepNumber = nextStepNumber;
  answer.caughtUp = caughtUp;
  answer.sealed = sealed;
  shared.set(read.steps, answer);
  return answer;
}
