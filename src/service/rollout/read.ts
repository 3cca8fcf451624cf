import {
  type ReadRolloutsRequest,
  ReadRolloutsResponseSchema,
  type RolloutService,
} from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { invalidField } from '../../domain/errors.ts';
import type { View } from '../../store/contract/request.ts';
import { readRollouts as readRolloutsOf } from '../../stream/rollouts/read.ts';
import type { RolloutsRead } from '../../stream/rollouts/read_group.ts';
import { type EncodedResponse, withSteps } from '../answer/encoded.ts';
import { toView } from '../convert/values.ts';
import type { ServerStream } from '../method.ts';
import { fromRollout } from './messages.ts';

/** Reads the rollouts of a stage with their steps, group by group (Q6). */
export const readRollouts: ServerStream<typeof RolloutService.method.readRollouts, EncodedResponse> = {
  async *messages({ view: asked, ...request }, { app, caller, signal }) {
    const view = toView(asked, 'FULL');
    refuseWithGroup(request);
    const args = { ...request, view, signal };
    for await (const read of readRolloutsOf(app, caller, args)) yield fromRolloutsRead(read, view);
  },
};

/** Errors: INVALID_REQUEST. */
function refuseWithGroup({ groupId, completeGroupsOnly, follow }: Omit<ReadRolloutsRequest, 'view'>): void {
  if (groupId === '') return;
  if (completeGroupsOnly) throw invalidField('complete_groups_only', 'must be false when group_id is set');
  if (follow) throw invalidField('follow', 'must be false when group_id is set');
}

function fromRolloutsRead({ rollout, steps, blobs, ...marks }: RolloutsRead, view: View): EncodedResponse {
  const fields = { ...marks, blobs: [...blobs], rollout: rollout && fromRollout(rollout, view) };
  return withSteps(ReadRolloutsResponseSchema, fields, steps);
}
