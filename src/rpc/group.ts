import { create } from '@bufbuild/protobuf';
import type { ServiceImpl } from '@connectrpc/connect';
import {
  type GetGroupRequest,
  GetGroupResponseSchema,
  GetOrCreateGroupResponseSchema,
  ListGroupsResponseSchema,
  RolloutService,
  UpdateGroupResponseSchema,
} from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { getGroup, getOrCreateGroup, listGroups, updateGroup } from '../app/rollout/group.ts';
import { invalidField } from '../domain/errors.ts';
import { required } from '../service/convert/place.ts';
import { toMap, toView } from '../service/convert/values.ts';
import { pageArgsOf } from '../service/request/page_args.ts';
import { unary, type Wire } from './call.ts';
import { toGroupChanges, toOnSuccess } from './convert/rollout_in.ts';
import { fromGroup } from './convert/rollout_out.ts';

const rpc = RolloutService.method;

export function groupMethods(
  wire: Wire,
): Pick<ServiceImpl<typeof RolloutService>, 'getOrCreateGroup' | 'getGroup' | 'listGroups' | 'updateGroup'> {
  return {
    getOrCreateGroup: unary(wire, rpc.getOrCreateGroup, 'write', async (request, { app, caller }) => {
      const { stageId, batch, metadataJson } = request;
      const { group, created } = await getOrCreateGroup(app, caller, {
        stageId,
        number: required(request.number, 'number'),
        batch,
        onSuccess: toOnSuccess(request.onSuccess) ?? 'CONTINUE',
        labels: toMap(request.labels),
        metadataJson,
      });
      return create(GetOrCreateGroupResponseSchema, { group: fromGroup(group, 'FULL'), created });
    }),

    getGroup: unary(wire, rpc.getGroup, 'read', async (request, { app, caller }) => {
      const found = await getGroup(app, caller, toGroupPlace(request));
      return create(GetGroupResponseSchema, { group: fromGroup(found, toView(request.view, 'FULL')) });
    }),

    listGroups: unary(wire, rpc.listGroups, 'read', async (request, { app, caller }) => {
      const { stageId } = request;
      const view = toView(request.view, 'BASIC');
      const page = await listGroups(app, caller, { stageId, view, ...pageArgsOf(caller, rpc.listGroups, request) });
      const groups = page.items.map((group) => fromGroup(group, view));
      return create(ListGroupsResponseSchema, { groups, nextPageToken: page.nextPageToken });
    }),

    updateGroup: unary(wire, rpc.updateGroup, 'write', async (request, { app, caller }) => {
      const { groupId } = request;
      const now = await updateGroup(app, caller, { groupId, changes: toGroupChanges(request) });
      return create(UpdateGroupResponseSchema, { group: fromGroup(now, 'FULL') });
    }),
  };
}

/** By its id, or by its stage and number, of which none must be left over. */
function toGroupPlace({ groupId, stageId, number }: GetGroupRequest) {
  if (groupId === undefined) return { stageId: stageId ?? '', number: required(number, 'number') };
  if (number !== undefined) throw invalidField('number', 'must not be set with group_id: it goes with stage_id');
  return { id: groupId };
}
