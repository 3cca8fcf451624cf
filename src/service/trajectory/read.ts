import { ReadStepsResponseSchema, type TrajectoryService } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { EncodedSteps } from '../../store/contract/step.ts';
import type { StepsRead } from '../../stream/steps/read.ts';
import { readSteps as readStepsOf } from '../../stream/steps/read.ts';
import { type EncodedResponse, withSteps } from '../answer/encoded.ts';
import { toView } from '../convert/values.ts';
import type { ServerStream } from '../method.ts';

/** Reads steps (RD1), and follows them (RD2). */
export const readSteps: ServerStream<typeof TrajectoryService.method.readSteps, EncodedResponse> = {
  async *messages({ view, ...request }, { app, caller, signal }) {
    const args = { ...request, view: toView(view, 'FULL'), signal };
    for await (const read of readStepsOf(app, caller, args)) yield fromStepsRead(read);
  },
};

/** Caches the last response with a part: live followers share parts. */
const shared = new WeakMap<EncodedSteps, { readonly read: StepsRead; readonly response: EncodedResponse }>();

function fromStepsRead(read: StepsRead): EncodedResponse {
  const { part, firstStepNumber, nextStepNumber, caughtUp, sealed, blobs = [] } = read;
  const known = part && shared.get(part);
  if (known !== undefined && known.read.caughtUp === caughtUp && known.read.sealed === sealed) return known.response;
  const fields = { trajectoryId: part?.owner.id ?? '', nextStepNumber, caughtUp, sealed, blobs: [...blobs] };
  const response = withSteps(ReadStepsResponseSchema, fields, part, firstStepNumber);
  if (part !== undefined) shared.set(part, { read, response });
  return response;
}
