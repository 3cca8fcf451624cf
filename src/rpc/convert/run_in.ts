import type { Plan as WirePlan } from '../../../gen/es/anabranch/v1/run_pb.js';
import type {
  BranchRunRequest,
  CreateRunRequest,
  ListRunsRequest,
  UpdateRunRequest,
} from '../../../gen/es/anabranch/v1/run_service_pb.js';
import type { RunMakingArgs } from '../../app/run/create.ts';
import type { ListRunsArgs } from '../../app/run/list.ts';
import type { UpdateRunArgs } from '../../app/run/update.ts';
import type { InitialStatus } from '../../domain/lifecycle.ts';
import type { Plan } from '../../domain/run.ts';
import { toMillis } from '../../service/convert/duration.ts';
import { changesOf } from '../../service/convert/mask.ts';
import { toInitialStatus, toInstant, toMap, toStatus } from '../../service/convert/values.ts';
import { requireStageKind } from '../../service/stage/stage.ts';

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

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
