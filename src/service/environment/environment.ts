import { EnvironmentSchema, type Environment as WireEnvironment } from '../../../gen/es/anabranch/v1/rollout_pb.js';
import {
  type CreateEnvironmentRequest,
  RolloutService,
  type StartEnvironmentRequest,
} from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { environmentNotFound } from '../../domain/errors.ts';
import type { Verb } from '../../domain/lifecycle.ts';
import type { Environment } from '../../domain/rollout.ts';
import type { NewEnvironment } from '../../store/contract/environment.ts';
import { messageOf } from '../answer/message.ts';
import { pageOf } from '../answer/page.ts';
import { sizerOf } from '../answer/size.ts';
import { fromInstant, fromMap, fromStatus, toInitialStatus, toMap, toStatuses } from '../convert/values.ts';
import type { Call, SomeMethods } from '../method.ts';
import { idempotencyKeyOf } from '../request/digest.ts';
import { pageArgsOf } from '../request/page_token.ts';

const rpc = RolloutService.method;
const environmentBytes = sizerOf(EnvironmentSchema);

export const environmentMethods = {
  async createEnvironment(request, { app, caller }) {
    const newEnvironment = toNewEnvironment(request, request.environmentId || app.ids.uuid());
    const key = idempotencyKeyOf(rpc.createEnvironment, request);
    const created = await app.store.createEnvironment(caller, newEnvironment, key);
    return { environment: toMessage(created) };
  },

  async getEnvironment({ environmentId }, { app, caller }) {
    const found = await app.store.getEnvironment(caller.namespace, environmentId);
    if (found === undefined) throw environmentNotFound(environmentId);
    return { environment: toMessage(found) };
  },

  /** Lists the newest first. */
  async listEnvironments(request, { app, caller }) {
    const { runId, rolloutId } = request;
    const of = runId === '' ? { rolloutId } : { runId };
    const statuses = request.statuses.length === 0 ? undefined : toStatuses(request.statuses);
    const page = await pageOf(pageArgsOf(caller, rpc.listEnvironments, request), {
      fetch: (rows) => app.store.listEnvironments(caller.namespace, of, statuses, rows),
      keyOf: ({ key }) => key,
      show: toMessage,
      bytesOf: environmentBytes,
    });
    return { environments: page.items, nextPageToken: page.nextPageToken };
  },

  startEnvironment: (request, call) => move('start', request, call),
  pauseEnvironment: (request, call) => move('pause', request, call),
  resumeEnvironment: (request, call) => move('resume', request, call),
  completeEnvironment: (request, call) => move('complete', request, call),
  failEnvironment: (request, call) => move('fail', request, call),
  cancelEnvironment: (request, call) => move('cancel', request, call),
} satisfies SomeMethods<typeof RolloutService>;

type MoveRequest = Omit<StartEnvironmentRequest, '$typeName' | '$unknown'>;

/** Changes the status and records the change (L2, L5). */
async function move(verb: Exclude<Verb, 'reopen'>, request: MoveRequest, { app, caller }: Call) {
  const { environmentId, message, metadataJson, phase, externalId } = request;
  const details = { message, metadataJson, phase, resultJson: '' };
  return { environment: toMessage(await app.store.moveEnvironment(caller, environmentId, verb, details, externalId)) };
}

function toNewEnvironment(request: CreateEnvironmentRequest, id: string): NewEnvironment {
  const { runId, type, externalId, configJson, phase } = request;
  const status = toInitialStatus(request.initialStatus);
  return { id, runId, type, externalId, status, labels: toMap(request.labels), configJson, phase };
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
