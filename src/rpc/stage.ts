import { create } from '@bufbuild/protobuf';
import type { ServiceImpl } from '@connectrpc/connect';
import {
  CancelStageResponseSchema,
  CloseQueueResponseSchema,
  CompleteStageResponseSchema,
  FailStageResponseSchema,
  GetLatestCheckpointedStageResponseSchema,
  GetOrCreateStageResponseSchema,
  type GetStageRequest,
  GetStageResponseSchema,
  ListStagesResponseSchema,
  PauseStageResponseSchema,
  ReopenStageResponseSchema,
  ResumeStageResponseSchema,
  RunService,
  StartStageResponseSchema,
  UpdateStageResponseSchema,
} from '../../gen/es/anabranch/v1/run_service_pb.js';
import { cancelRollouts } from '../app/run/cancel_rollouts.ts';
import { moveStage } from '../app/run/move.ts';
import {
  closeQueue,
  getLatestCheckpointedStage,
  getOrCreateStage,
  getStage,
  listStages,
  updateStage,
} from '../app/run/stage.ts';
import { invalidField } from '../domain/errors.ts';
import type { Verb } from '../domain/lifecycle.ts';
import { required } from '../service/convert/place.ts';
import { toInitialStatus, toStatus, toView } from '../service/convert/values.ts';
import type { Call } from '../service/method.ts';
import { pageArgsOf } from '../service/request/page_args.ts';
import { unary, type Wire } from './call.ts';
import { requireStageKind, toStageChanges, toStageKind } from './convert/run_in.ts';
import { fromStage } from './convert/run_out.ts';

const rpc = RunService.method;
type Service = ServiceImpl<typeof RunService>;

export function wholeStages(
  wire: Wire,
): Pick<
  Service,
  'getOrCreateStage' | 'getStage' | 'listStages' | 'updateStage' | 'getLatestCheckpointedStage' | 'closeQueue'
> {
  return {
    getOrCreateStage: unary(wire, rpc.getOrCreateStage, 'write', async (request, { app, caller }) => {
      const { runId, batch, phase, modelUri, totalSubsteps, metadataJson } = request;
      const { stage, created } = await getOrCreateStage(app, caller, {
        runId,
        kind: requireStageKind(request.kind, 'kind'),
        number: required(request.number, 'number'),
        status: toInitialStatus(request.initialStatus),
        batch,
        phase,
        modelUri,
        totalSubsteps,
        metadataJson,
      });
      return create(GetOrCreateStageResponseSchema, { stage: fromStage(stage, 'FULL'), created });
    }),

    getStage: unary(wire, rpc.getStage, 'read', async (request, { app, caller }) => {
      const found = await getStage(app, caller, toStagePlace(request));
      return create(GetStageResponseSchema, { stage: fromStage(found, toView(request.view, 'FULL')) });
    }),

    listStages: unary(wire, rpc.listStages, 'read', async (request, { app, caller }) => {
      const { runId, descending } = request;
      const view = toView(request.view, 'BASIC');
      const kinds = request.kinds.map(toStageKind).filter((kind) => kind !== undefined);
      const statuses = request.statuses.map(toStatus).filter((status) => status !== undefined);
      const filter = {
        ...(kinds.length === 0 ? {} : { kinds }),
        ...(statuses.length === 0 ? {} : { statuses }),
        descending,
      };
      const page = await listStages(app, caller, {
        runId,
        filter,
        view,
        ...pageArgsOf(caller, rpc.listStages, request),
      });
      const stages = page.items.map((stage) => fromStage(stage, view));
      return create(ListStagesResponseSchema, { stages, nextPageToken: page.nextPageToken });
    }),

    updateStage: unary(wire, rpc.updateStage, 'write', async (request, { app, caller }) => {
      const now = await updateStage(app, caller, { stageId: request.stageId, changes: toStageChanges(request) });
      return create(UpdateStageResponseSchema, { stage: fromStage(now, 'FULL') });
    }),

    getLatestCheckpointedStage: unary(
      wire,
      rpc.getLatestCheckpointedStage,
      'read',
      async ({ runId, kind }, { app, caller }) => {
        const args = { runId, kind: toStageKind(kind) ?? 'TRAIN_STEP' };
        const found = await getLatestCheckpointedStage(app, caller, args);
        return create(GetLatestCheckpointedStageResponseSchema, { stage: fromStage(found, 'FULL') });
      },
    ),

    closeQueue: unary(wire, rpc.closeQueue, 'write', async ({ stageId }, { app, caller }) => {
      const stage = await closeQueue(app, caller, { stageId });
      return create(CloseQueueResponseSchema, { stage: fromStage(stage, 'FULL') });
    }),
  };
}

export function stageVerbs(
  wire: Wire,
): Pick<
  Service,
  'startStage' | 'pauseStage' | 'resumeStage' | 'completeStage' | 'failStage' | 'cancelStage' | 'reopenStage'
> {
  const move = async ({ app, caller }: Call, verb: Verb, request: StageVerbRequest) => {
    const { stageId, message, metadataJson, phase, cancelRollouts = false } = request;
    const said = { message, metadataJson, phase, resultJson: '' };
    return { stage: fromStage(await moveStage(app, caller, { stageId, verb, said, cancelRollouts }), 'FULL') };
  };
  return {
    startStage: unary(wire, rpc.startStage, 'write', async (request, call) =>
      create(StartStageResponseSchema, await move(call, 'start', request)),
    ),
    pauseStage: unary(wire, rpc.pauseStage, 'write', async (request, call) =>
      create(PauseStageResponseSchema, await move(call, 'pause', request)),
    ),
    resumeStage: unary(wire, rpc.resumeStage, 'write', async (request, call) =>
      create(ResumeStageResponseSchema, await move(call, 'resume', request)),
    ),
    completeStage: unary(wire, rpc.completeStage, 'write', async (request, call) =>
      create(CompleteStageResponseSchema, await move(call, 'complete', request)),
    ),
    failStage: unary(wire, rpc.failStage, 'write', async (request, call) =>
      create(FailStageResponseSchema, await move(call, 'fail', request)),
    ),
    cancelStage: unary(wire, rpc.cancelStage, 'write', async (request, call) => {
      const moved = await move(call, 'cancel', request);
      const cancelled = request.cancelRollouts ? await cancelRollouts(call.app, call.caller, request) : 0n;
      return create(CancelStageResponseSchema, { ...moved, cancelledRollouts: cancelled });
    }),
    reopenStage: unary(wire, rpc.reopenStage, 'write', async (request, call) =>
      create(ReopenStageResponseSchema, await move(call, 'reopen', request)),
    ),
  };
}

interface StageVerbRequest {
  readonly stageId: string;
  readonly message: string;
  readonly metadataJson: string;
  readonly phase?: string | undefined;
  readonly cancelRollouts?: boolean;
}

/** By its id, or by its run, kind and number, of which none must be left over. */
function toStagePlace({ stageId, runId, kind, number }: GetStageRequest) {
  if (stageId === undefined) {
    return { runId: runId ?? '', kind: requireStageKind(kind, 'kind'), number: required(number, 'number') };
  }
  if (toStageKind(kind) !== undefined) throw invalidField('kind', 'must not be set with stage_id: it goes with run_id');
  if (number !== undefined) throw invalidField('number', 'must not be set with stage_id: it goes with run_id');
  return { id: stageId };
}
