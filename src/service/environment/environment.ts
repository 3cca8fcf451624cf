import { EnvironmentSchema, type Environment as WireEnvironment } from '../../../gen/es/anabranch/v1/rollout_pb.js';
import { type ListEnvironmentsRequest, RolloutService } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { invalidField } from '../../domain/errors.ts';
import type { Environment } from '../../domain/rollout.ts';
import type { EnvironmentFilter } from '../../store/contract/environment.ts';
import { messageOf, sizerOf } from '../answer/message.ts';
import { pageOf } from '../answer/page.ts';
import { fromInstant, fromMap, fromStatus, setFilters, toMap, toStatuses } from '../convert/values.ts';
import type { SomeMethods } from '../method.ts';
import { pageArgsOf } from '../request/page_token.ts';

const environmentBytes = sizerOf(EnvironmentSchema);

export const environmentMethods = {
  async upsertEnvironment(request, { app, caller }) {
    const { environmentId, status, labels, $typeName: _, $unknown: __, ...fields } = request;
    const { environment, created } = await app.store.upsertEnvironment(caller, {
      ...fields,
      id: environmentId,
      status: toStatuses([status])[0],
      labels: labels && toMap(labels.values),
    });
    return { environment: toMessage(environment), created };
  },

  /** Lists the newest first. */
  async listEnvironments(request, { app, caller }) {
    const filter = toFilter(request);
    const page = await pageOf(pageArgsOf({ app, caller }, RolloutService.method.listEnvironments, request), {
      fetch: (rows) => app.store.listEnvironments(caller.namespace, filter, rows),
      keyOf: ({ key }) => key,
      show: toMessage,
      bytesOf: environmentBytes,
    });
    return { environments: page.items, nextPageToken: page.nextPageToken };
  },
} satisfies SomeMethods<typeof RolloutService>;

/** Errors: INVALID_REQUEST if no filter limits the list, or an attempt is set without its rollout. */
function toFilter({ runId, rolloutId, attempt, environmentIds, statuses }: ListEnvironmentsRequest): EnvironmentFilter {
  if (attempt !== undefined && rolloutId === '') {
    throw invalidField('attempt', 'must not be set without rollout_id: it is the number of an attempt of the rollout');
  }
  if (runId === '' && rolloutId === '' && environmentIds.length === 0) {
    throw invalidField('run_id', 'none of run_id, rollout_id and environment_ids is set: set at least one');
  }
  return setFilters({ runId, rolloutId, attempt, ids: environmentIds, statuses: toStatuses(statuses) });
}

function toMessage({ key: _, run, status, labels, ...fields }: Environment): WireEnvironment {
  return messageOf(EnvironmentSchema, {
    ...fields,
    runId: run.id,
    status: fromStatus(status),
    labels: fromMap(labels),
    startTime: fromInstant(fields.startTime),
    endTime: fromInstant(fields.endTime),
    createTime: fromInstant(fields.createTime),
    updateTime: fromInstant(fields.updateTime),
  });
}
