import { StageKind, type Plan as WirePlan, type TimeSpan as WireSpan } from '../../../gen/es/anabranch/v1/run_pb.js';
import type {
  BranchRunRequest,
  CreateRunRequest,
  ListRunsRequest,
  UpdateRunRequest,
  UpdateStageRequest,
} from '../../../gen/es/anabranch/v1/run_service_pb.js';
import type { RunMakingArgs } from '../../app/run/create.ts';
import type { ListRunsArgs } from '../../app/run/list.ts';
import type { UpdateStageArgs } from '../../app/run/stage.ts';
import type { UpdateRunArgs } from '../../app/run/update.ts';
import { invalidField } from '../../domain/errors.ts';
import type { InitialStatus } from '../../domain/lifecycle.ts';
import type { StageKind as DomainKind, Plan, TimeSpan } from '../../domain/run.ts';
import { toMillis } from '../../service/convert/duration.ts';
import { changesOf } from '../../service/convert/mask.ts';
import { toInitialStatus, toInstant, toMap, toStatus } from '../../service/convert/values.ts';

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

const KINDS: Readonly<Record<number, DomainKind>> = {
  [StageKind.TRAIN_STEP]: 'TRAIN_STEP',
  [StageKind.EVAL]: 'EVAL',
  [StageKind.BASELINE]: 'BASELINE',
};

/** Undefined for none. */
export function toStageKind(kind: StageKind): DomainKind | undefined {
  return KINDS[kind];
}

/** Errors: INVALID_REQUEST for none. */
export function requireStageKind(kind: StageKind, field: string): DomainKind {
  const known = toStageKind(kind);
  if (known === undefined) throw invalidField(field, 'must be set');
  return known;
}

/** What a root and a branch are given alike. */
export function toRunMaking(
  request: CreateRunRequest | BranchRunRequest,
  configJson: string,
  unset: InitialStatus,
): Omit<RunMakingArgs, 'key'> {
  const { name, description, removedConfigPaths, metadataJson, failWhenStale } = request;
  return {
    name,
    description,
    configJson,
    removedConfigPaths,
    labels: toMap(request.labels),
    metadataJson,
    plan: toPlan(request.plan),
    status: toInitialStatus(request.initialStatus, unset),
    heartbeatTimeoutMs: toMillis(request.heartbeatTimeout),
    failWhenStale,
  };
}

export function toPlan(plan: WirePlan | undefined): Plan | undefined {
  if (plan === undefined) return undefined;
  return {
    stagePlans: plan.stagePlans.map(({ kind, stages, groupsPerStage, groupSize, maxTurns, substeps }, i) => ({
      kind: requireStageKind(kind, `plan.stage_plans[${i}].kind`),
      stages,
      groupsPerStage,
      groupSize,
      maxTurns,
      substeps,
    })),
    concurrency: Math.max(1, plan.concurrency),
  };
}

export function toRunFilter(request: ListRunsRequest): ListRunsArgs['filter'] {
  const filter: Mutable<ListRunsArgs['filter']> = {};
  if (request.name !== '') filter.name = request.name;
  if (request.statuses.length > 0) {
    filter.statuses = request.statuses.map(toStatus).filter((status) => status !== undefined);
  }
  const labels = toMap(request.labels);
  if (labels.size > 0) filter.labels = labels;
  if (request.parentId !== '') filter.parentId = request.parentId;
  if (request.rootsOnly) filter.rootsOnly = true;
  if (request.staleOnly) filter.staleOnly = true;
  const from = toInstant(request.createTimeFrom);
  const to = toInstant(request.createTimeTo);
  if (from !== undefined) filter.createTimeFrom = from;
  if (to !== undefined) filter.createTimeTo = to;
  return filter;
}

export function toRunChanges(request: UpdateRunRequest): UpdateRunArgs['changes'] {
  return changesOf<UpdateRunArgs['changes']>(request.updateMask, {
    name: () => ({ name: request.name }),
    description: () => ({ description: request.description }),
    labels: () => ({ labels: toMap(request.labels) }),
    metadata_json: () => ({ metadataJson: request.metadataJson }),
    plan: () => ({ plan: toPlan(request.plan) }),
    status_message: () => ({ statusMessage: request.statusMessage }),
    phase: () => ({ phase: request.phase }),
    metrics: () => ({ metrics: toMap(request.metrics) }),
    heartbeat_timeout: () => ({ heartbeatTimeoutMs: toMillis(request.heartbeatTimeout) }),
    fail_when_stale: () => ({ failWhenStale: request.failWhenStale }),
  });
}

export function toStageChanges(request: UpdateStageRequest): UpdateStageArgs['changes'] {
  return changesOf<UpdateStageArgs['changes']>(request.updateMask, {
    batch: () => ({ batch: request.batch }),
    status_message: () => ({ statusMessage: request.statusMessage }),
    phase: () => ({ phase: request.phase }),
    model_uri: () => ({ modelUri: request.modelUri }),
    model_checkpoint_uri: () => ({ modelCheckpointUri: request.modelCheckpointUri }),
    metrics: () => ({ metrics: toMap(request.metrics) }),
    metadata_json: () => ({ metadataJson: request.metadataJson }),
    completed_substeps: () => ({ completedSubsteps: request.completedSubsteps }),
    total_substeps: () => ({ totalSubsteps: request.totalSubsteps }),
    timings: () => ({ timings: toTimings(request.timings) }),
  });
}

export function toTimings(timings: { readonly [name: string]: WireSpan }): ReadonlyMap<string, TimeSpan> {
  return new Map(
    Object.entries(timings).map(([name, { startTime, endTime }]) => [
      name,
      { startTime: toInstant(startTime), endTime: toInstant(endTime) },
    ]),
  );
}
