import { create } from '@bufbuild/protobuf';
import type { MethodImpl } from '@connectrpc/connect';
import {
  type ReadRolloutsRequest,
  type ReadRolloutsResponse,
  ReadRolloutsResponseSchema,
  RolloutService,
} from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { toView } from '../service/convert/values.ts';
import type { Call } from '../service/method.ts';
import { fromRollout } from '../service/rollout/messages.ts';
import { fromStoredStep } from '../service/trajectory/step_out.ts';
import { readRollouts as readRolloutsOf } from '../stream/rollouts/read.ts';
import type { RolloutsRead } from '../stream/rollouts/read_group.ts';
import { serverStream, type Wire } from './call.ts';
import { hasManySteps } from './read.ts';

/** The trainer's read: one message for each part of the use case, which keeps them below 1 MiB. */
export function readRollouts(wire: Wire): MethodImpl<typeof RolloutService.method.readRollouts> {
  const handle = async function* (request: ReadRolloutsRequest, { app, caller, signal }: Call) {
    const { stageId, completeGroupsOnly, follow } = request;
    const view = toView(request.view, 'FULL');
    const reading = readRolloutsOf(app, caller, { stageId, completeGroupsOnly, follow, view, signal });
    for await (const read of reading) yield fromRolloutsRead(read, view);
  };
  return serverStream(wire, RolloutService.method.readRollouts, handle, { isLarge: hasManySteps });
}

function fromRolloutsRead(read: RolloutsRead, view: 'BASIC' | 'FULL'): ReadRolloutsResponse {
  const answer = create(ReadRolloutsResponseSchema);
  if (read.rollout !== undefined) answer.rollout = fromRollout(read.rollout, view);
  for (const step of read.steps) answer.steps.push(fromStoredStep(step));
  answer.rolloutDone = read.rolloutDone;
  answer.groupDone = read.groupDone;
  answer.caughtUp = read.caughtUp;
  return answer;
}
