import { StageKind, StageSchema, type Stage as WireStage } from '../../../gen/es/anabranch/v1/run_pb.js';
import {
  type GetStageRequest,
  RunService,
  StageOrder,
  type StartStageRequest,
  UpdateStageRequestSchema,
} from '../../../gen/es/anabranch/v1/run_service_pb.js';
import { invalidField, stageNotFound } from '../../domain/errors.ts';
import type { StageVerb } from '../../domain/lifecycle.ts';
import type { StageKind as DomainKind, Stage } from '../../domain/run.ts';
import type { View } from '../../store/contract/request.ts';
import type { StageReference } from '../../store/contract/stage.ts';
import { messageOf, sizerOf } from '../answer/message.ts';
import { pageOf } from '../answer/page.ts';
import { maskedFields } from '../convert/mask.ts';
import {
  fromInstant,
  fromMap,
  fromStatus,
  fromTimings,
  required,
  setFilters,
  toInitialStatus,
  toMap,
  toStatuses,
  toTimings,
  toView,
} from '../convert/values.ts';
import type { Call, SomeMethods } from '../method.ts';
import { pageArgsOf } from '../request/page_token.ts';
import { cancelRollouts } from '../run/verbs.ts';

export const stageBytes = sizerOf(StageSchema);

export const stageMethods = {
  async getOrCreateStage(request, { app, caller }) {
    const { batch, totalSubsteps, $typeName: _, $unknown: __, ...fields } = request;
    const { stage, created } = await app.store.getOrCreateStage(caller, {
      ...fields,
      batch,
      totalSubsteps,
      id: app.ids.uuid(),
      kind: requireStageKind(request.kind, 'kind'),
      number: required(request.number, 'number'),
      status: toInitialStatus(request.initialStatus),
    });
    return { stage: stageMessage(stage, 'FULL'), created };
  },

  async getStage(request, { app, caller }) {
    const reference = toStageReference(request);
    const found = await app.store.getStage(caller.namespace, reference);
    if (found !== undefined) return { stage: stageMessage(found, toView(request.view, 'FULL')) };
    throw stageNotFound(
      'id' in reference ? reference.id : `${reference.kind} ${reference.number} of run ${reference.runId}`,
    );
  },

  async listStages(request, { app, caller }) {
    const { runId, descending, hasCheckpoint } = request;
    const view = toView(request.view, 'BASIC');
    const filter = setFilters({
      kinds: toStageKinds(request.kinds),
      statuses: toStatuses(request.statuses),
      hasCheckpoint,
      byNumber: request.order === StageOrder.NUMBER,
      descending,
    });
    const page = await pageOf(pageArgsOf({ app, caller }, RunService.method.listStages, request), {
      view,
      fetch: (rows) => app.store.listStages(caller.namespace, runId, filter, rows, view),
      keyOf: ({ key }) => key,
      show: (row) => stageMessage(row, view),
      bytesOf: stageBytes,
    });
    return { stages: page.items, nextPageToken: page.nextPageToken };
  },

  async updateStage(request, { app, caller }) {
    const changes = maskedFields(UpdateStageRequestSchema, request, { metrics: toMap, timings: toTimings });
    return { stage: stageMessage(await app.store.updateStage(caller.namespace, request.stageId, changes), 'FULL') };
  },

  async closeQueue({ stageId }, { app, caller }) {
    return { stage: stageMessage(await app.store.closeQueue(caller.namespace, stageId), 'FULL') };
  },

  startStage: (request, call) => move('start', request, call),
  completeStage: (request, call) => move('complete', request, call),
  failStage: (request, call) => move('fail', request, call),
  reopenStage: (request, call) => move('reopen', request, call),

  async cancelStage(request, call) {
    const moved = await move('cancel', request, call);
    const { stageId } = request;
    const cancelledRollouts = request.cancelRollouts ? await cancelRollouts(call.app, call.caller, { stageId }) : 0n;
    return { ...moved, cancelledRollouts };
  },
} satisfies SomeMethods<typeof RunService>;

type MoveRequest = Omit<StartStageRequest, '$typeName' | '$unknown'> & { readonly cancelRollouts?: boolean };

/** Changes the status and records the change (L2, L5). */
async function move(verb: StageVerb, request: MoveRequest, { app, caller }: Call) {
  const { stageId, message, metadataJson, phase, cancelRollouts: marksRollouts = false } = request;
  const details = { message, metadataJson, phase, resultJson: '' };
  return { stage: stageMessage(await app.store.moveStage(caller, stageId, verb, details, marksRollouts), 'FULL') };
}

/** Returns the id, or run, kind and number. Errors: INVALID_REQUEST if both are set. */
function toStageReference({ stageId, runId = '', kind, number }: GetStageRequest): StageReference {
  if (stageId === undefined) {
    return { runId, kind: requireStageKind(kind, 'kind'), number: required(number, 'number') };
  }
  if (toStageKind(kind) !== undefined)
    throw invalidField('kind', 'must not be set with stage_id: it is used only with run_id');
  if (number !== undefined) throw invalidField('number', 'must not be set with stage_id: it is used only with run_id');
  return { id: stageId };
}

const KINDS: Readonly<Record<StageKind, DomainKind | undefined>> = {
  [StageKind.UNSPECIFIED]: undefined,
  [StageKind.TRAIN_STEP]: 'TRAIN_STEP',
  [StageKind.EVAL]: 'EVAL',
  [StageKind.BASELINE]: 'BASELINE',
};

/** Returns undefined for an unset kind. */
function toStageKind(kind: StageKind): DomainKind | undefined {
  return KINDS[kind];
}

export function toStageKinds(kinds: readonly StageKind[]): DomainKind[] {
  return kinds.map(toStageKind).filter((kind) => kind !== undefined);
}

/** Errors: INVALID_REQUEST for an unset kind. */
export function requireStageKind(kind: StageKind, field: string): DomainKind {
  return required(toStageKind(kind), field);
}

/** BASIC omits fields with JSON (FM7). */
export function stageMessage(stage: Stage, view: View): WireStage {
  const { key: _, run, kind, metrics, metadataJson, timings, status, ...fields } = stage;
  return messageOf(StageSchema, {
    ...fields,
    runId: run.id,
    kind: StageKind[kind],
    metrics: fromMap(metrics),
    metadataJson: view === 'FULL' ? metadataJson : '',
    timings: fromTimings(timings),
    status: fromStatus(status),
    startTime: fromInstant(stage.startTime),
    endTime: fromInstant(stage.endTime),
    queueCloseTime: fromInstant(stage.queueCloseTime),
    createTime: fromInstant(stage.createTime),
    updateTime: fromInstant(stage.updateTime),
  });
}
