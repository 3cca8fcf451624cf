import type { Plan as WirePlan } from '../../../gen/es/anabranch/v1/run_pb.js';
import type {
  BranchRunRequest,
  CreateRunRequest,
  ListRunsRequest,
  UpdateRunRequest,
} from '../../../gen/es/anabranch/v1/run_service_pb.js';
import type { RunMakingArgs } from '../../app/run/create.ts';
import type { ListRunsArgs } from '../../app/run/list.ts';
import type { InitialStatus } from '../../domain/lifecycle.ts';
import type { Plan } from '../../domain/run.ts';
import type { RunChanges } from '../../store/contract/run.ts';
import { toMillis } from '../convert/duration.ts';
import { setFilters } from '../convert/filter.ts';
import { changesOf } from '../convert/mask.ts';
import { toInitialStatus, toInstant, toMap, toStatuses } from '../convert/values.ts';
import { requireStageKind } from '../stage/stage.ts';

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
  const { name, parentId, rootsOnly, staleOnly } = request;
  return setFilters({
    name,
    statuses: toStatuses(request.statuses),
    labels: toMap(request.labels),
    parentId,
    rootsOnly,
    staleOnly,
    createTimeFrom: toInstant(request.createTimeFrom),
    createTimeTo: toInstant(request.createTimeTo),
  });
}

export function toRunChanges(request: UpdateRunRequest): RunChanges {
  return changesOf<RunChanges>(request.updateMask, {
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
