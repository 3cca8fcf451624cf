import { create } from '@bufbuild/protobuf';
import type { ServiceImpl } from '@connectrpc/connect';
import {
  CancelEnvironmentResponseSchema,
  CompleteEnvironmentResponseSchema,
  CreateEnvironmentResponseSchema,
  FailEnvironmentResponseSchema,
  GetEnvironmentResponseSchema,
  ListEnvironmentsResponseSchema,
  PauseEnvironmentResponseSchema,
  ResumeEnvironmentResponseSchema,
  RolloutService,
  StartEnvironmentResponseSchema,
} from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import {
  createEnvironment,
  getEnvironment,
  listEnvironments,
  type MoveEnvironmentArgs,
  moveEnvironment,
} from '../app/rollout/environment.ts';
import { idempotencyKeyOf } from '../service/request/digest.ts';
import { pageArgsOf } from '../service/request/page_args.ts';
import { type Call, unary, type Wire } from './call.ts';
import { toStatuses } from './convert/rollout_in.ts';
import { fromEnvironment } from './convert/rollout_out.ts';
import { toInitialStatus, toMap } from './convert/values.ts';

const rpc = RolloutService.method;
type Service = ServiceImpl<typeof RolloutService>;

export function wholeEnvironments(
  wire: Wire,
): Pick<Service, 'createEnvironment' | 'getEnvironment' | 'listEnvironments'> {
  return {
    createEnvironment: unary(wire, rpc.createEnvironment, 'write', async (request, { app, caller }) => {
      const key = idempotencyKeyOf(rpc.createEnvironment, request);
      const { environmentId, runId, type, externalId, configJson, phase } = request;
      const status = toInitialStatus(request.initialStatus);
      const labels = toMap(request.labels);
      const args = { environmentId, key, runId, type, externalId, status, labels, configJson, phase };
      const environment = fromEnvironment(await createEnvironment(app, caller, args));
      return create(CreateEnvironmentResponseSchema, { environment });
    }),

    getEnvironment: unary(wire, rpc.getEnvironment, 'read', async ({ environmentId }, { app, caller }) => {
      const environment = fromEnvironment(await getEnvironment(app, caller, { environmentId }));
      return create(GetEnvironmentResponseSchema, { environment });
    }),

    listEnvironments: unary(wire, rpc.listEnvironments, 'read', async (request, { app, caller }) => {
      const { runId, rolloutId } = request;
      const of = runId === '' ? { rolloutId } : { runId };
      const statuses = request.statuses.length === 0 ? undefined : toStatuses(request.statuses);
      const page = await listEnvironments(app, caller, {
        of,
        statuses,
        ...pageArgsOf(caller, rpc.listEnvironments, request),
      });
      return create(ListEnvironmentsResponseSchema, {
        environments: page.items.map(fromEnvironment),
        nextPageToken: page.nextPageToken,
      });
    }),
  };
}

export function environmentVerbs(
  wire: Wire,
): Pick<
  Service,
  | 'startEnvironment'
  | 'pauseEnvironment'
  | 'resumeEnvironment'
  | 'completeEnvironment'
  | 'failEnvironment'
  | 'cancelEnvironment'
> {
  const move = async ({ app, caller }: Call, verb: MoveEnvironmentArgs['verb'], request: EnvironmentVerbRequest) => {
    const { environmentId, message, metadataJson, phase, externalId } = request;
    const said = { message, metadataJson, phase, resultJson: '' };
    const now = await moveEnvironment(app, caller, { environmentId, verb, said, externalId });
    return { environment: fromEnvironment(now) };
  };
  return {
    startEnvironment: unary(wire, rpc.startEnvironment, 'write', async (request, call) =>
      create(StartEnvironmentResponseSchema, await move(call, 'start', request)),
    ),
    pauseEnvironment: unary(wire, rpc.pauseEnvironment, 'write', async (request, call) =>
      create(PauseEnvironmentResponseSchema, await move(call, 'pause', request)),
    ),
    resumeEnvironment: unary(wire, rpc.resumeEnvironment, 'write', async (request, call) =>
      create(ResumeEnvironmentResponseSchema, await move(call, 'resume', request)),
    ),
    completeEnvironment: unary(wire, rpc.completeEnvironment, 'write', async (request, call) =>
      create(CompleteEnvironmentResponseSchema, await move(call, 'complete', request)),
    ),
    failEnvironment: unary(wire, rpc.failEnvironment, 'write', async (request, call) =>
      create(FailEnvironmentResponseSchema, await move(call, 'fail', request)),
    ),
    cancelEnvironment: unary(wire, rpc.cancelEnvironment, 'write', async (request, call) =>
      create(CancelEnvironmentResponseSchema, await move(call, 'cancel', request)),
    ),
  };
}

interface EnvironmentVerbRequest {
  readonly environmentId: string;
  readonly message: string;
  readonly metadataJson: string;
  readonly phase?: string | undefined;
  readonly externalId?: string | undefined;
}
