import {
  GroupSchema,
  GroupStatisticsSchema,
  OnSuccess,
  type Group as WireGroup,
  type GroupStatistics as WireStatistics,
} from '../../../gen/es/anabranch/v1/rollout_pb.js';
import { type GetGroupRequest, RolloutService } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { groupNotFound, invalidField } from '../../domain/errors.ts';
import { type OnSuccess as DomainPolicy, type Group, type GroupStatistics, groupStatus } from '../../domain/rollout.ts';
import type { GroupReference } from '../../store/contract/group.ts';
import type { View } from '../../store/contract/request.ts';
import { messageOf, sizerOf } from '../answer/message.ts';
import { pageOf } from '../answer/page.ts';
import { fromInstant, fromMap, fromStatus, required, toMap, toView } from '../convert/values.ts';
import type { SomeMethods } from '../method.ts';
import { pageArgsOf } from '../request/page_token.ts';

const groupBytes = sizerOf(GroupSchema);

export const groupMethods = {
  async upsertGroup(request, { app, caller }) {
    const { stageId, batch, labels, metadataJson } = request;
    const { group, created } = await app.store.upsertGroup(caller.namespace, {
      id: app.ids.uuid(),
      stageId,
      number: required(request.number, 'number'),
      batch,
      onSuccess: toOnSuccess(request.onSuccess),
      labels: labels && toMap(labels.values),
      metrics: toMap(request.metrics),
      metadataJson,
    });
    return { group: groupMessage(group, 'FULL'), created };
  },

  async getGroup(request, { app, caller }) {
    const reference = toGroupReference(request);
    const found = await app.store.getGroup(caller.namespace, reference);
    if (found !== undefined) return { group: groupMessage(found, toView(request.view, 'FULL')) };
    throw groupNotFound('id' in reference ? reference.id : `${reference.number} of stage ${reference.stageId}`);
  },

  /** Lists groups by number. */
  async listGroups(request, { app, caller }) {
    const view = toView(request.view, 'BASIC');
    const page = await pageOf(pageArgsOf({ app, caller }, RolloutService.method.listGroups, request), {
      view,
      fetch: (rows) => app.store.listGroups(caller.namespace, request.stageId, rows, view),
      keyOf: ({ number }) => number,
      show: (row) => groupMessage(row, view),
      bytesOf: groupBytes,
    });
    return { groups: page.items, nextPageToken: page.nextPageToken };
  },
} satisfies SomeMethods<typeof RolloutService>;

/** Returns the id, or stage and number. Errors: INVALID_REQUEST if both are set. */
function toGroupReference({ groupId, stageId = '', number }: GetGroupRequest): GroupReference {
  if (groupId === undefined) return { stageId, number: required(number, 'number') };
  if (number !== undefined)
    throw invalidField('number', 'must not be set with group_id: it is used only with stage_id');
  return { id: groupId };
}

/** Returns undefined for an unset policy. */
export function toOnSuccess(policy: OnSuccess): DomainPolicy | undefined {
  if (policy === OnSuccess.CANCEL_PENDING) return 'CANCEL_PENDING';
  return policy === OnSuccess.CONTINUE ? 'CONTINUE' : undefined;
}

/** BASIC omits fields with JSON (FM7). */
export function groupMessage({ key: _, run, stage, statistics, ...fields }: Group, view: View): WireGroup {
  return messageOf(GroupSchema, {
    ...fields,
    runId: run.id,
    stageId: stage.id,
    onSuccess: OnSuccess[fields.onSuccess],
    labels: fromMap(fields.labels),
    metrics: fromMap(fields.metrics),
    metadataJson: view === 'FULL' ? fields.metadataJson : '',
    status: fromStatus(groupStatus(statistics)),
    statistics: statisticsMessage(statistics),
    createTime: fromInstant(fields.createTime),
    updateTime: fromInstant(fields.updateTime),
  });
}

function statisticsMessage(statistics: GroupStatistics): WireStatistics {
  const { pending, live, completed, failed, cancelled, judged, successes, rewards, best } = statistics;
  return messageOf(GroupStatisticsSchema, {
    rolloutCount: pending + live + completed + failed + cancelled,
    pendingCount: pending,
    liveCount: live,
    completedCount: completed,
    failedCount: failed,
    cancelledCount: cancelled,
    judgedCount: judged,
    successCount: successes,
    successRate: judged > 0n ? Number(successes) / Number(judged) : undefined,
    rewardCount: rewards.count,
    rewardMean: rewards.mean,
    rewardStd: rewards.std,
    bestReward: best?.reward,
    bestRolloutId: best?.rolloutId,
  });
}
