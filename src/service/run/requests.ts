import { StageKind, type Plan as WirePlan } from '../../../gen/es/anabranch/v1/run_pb.js';
import {
  type BranchRunRequest,
  type CreateRunRequest,
  type ListRunsRequest,
  type UpdateRunRequest,
  UpdateRunRequestSchema,
} from '../../../gen/es/anabranch/v1/run_service_pb.js';
import { invalidField } from '../../domain/errors.ts';
import { requireConfig } from '../../domain/json.ts';
import type { InitialStatus } from '../../domain/lifecycle.ts';
import type { Plan } from '../../domain/run.ts';
import { requireRemovedPaths } from '../../domain/run_config.ts';
import type { ExperimentReference } from '../../store/contract/experiment.ts';
import type { NewRunFields, RunChanges, RunFilter } from '../../store/contract/run.ts';
import { maskedFields } from '../convert/mask.ts';
import {
  requireDistinct,
  setFilters,
  toInitialStatus,
  toInstant,
  toMap,
  toMillis,
  toStatuses,
} from '../convert/values.ts';
import { requireStageKind } from '../stage/stage.ts';

/** Converts the fields that new runs and branches share. Errors: INVALID_REQUEST. */
export function toNewRunFields(
  request: CreateRunRequest | BranchRunRequest,
  id: string,
  own: { readonly configJson: string; readonly field: string },
  unset: InitialStatus,
): NewRunFields {
  const { $typeName: _, $unknown: __, ...fields } = request;
  return {
    ...fields,
    id,
    configJson: requireConfig(own.configJson, own.field),
    removedConfigPaths: requireRemovedPaths(request.removedConfigPaths),
    labels: toMap(request.labels),
    plan: toPlan(request.plan),
    status: toInitialStatus(request.initialStatus, unset),
    heartbeatTimeoutMs: toMillis(request.heartbeatTimeout),
  };
}

/** Errors: INVALID_REQUEST for two plans of a kind. */
function toPlan(plan: WirePlan | undefined): Plan | undefined {
  if (plan === undefined) return undefined;
  requireDistinct(
    plan.stagePlans,
    ({ kind }) => [kind],
    'plan.stage_plans',
    ({ kind }) => `must have one plan for each kind, but has two for ${StageKind[kind]}`,
  );
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

export function toRunFilter(request: ListRunsRequest): RunFilter {
  const { name, parentId, rootsOnly, staleOnly, text } = request;
  return setFilters({
    experiment: toExperimentReference(request),
    name,
    text,
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
  const masked = maskedFields(UpdateRunRequestSchema, request, {
    labels: toMap,
    plan: toPlan,
    metrics: toMap,
    heartbeatTimeout: toMillis,
  });
  const { heartbeatTimeout: heartbeatTimeoutMs, ...changes } = masked;
  return 'heartbeatTimeout' in masked ? { ...changes, heartbeatTimeoutMs } : changes;
}

/** A name can be changed, but not removed. */
export function requireNewName({ name }: { readonly name?: string }): void {
  if (name === '') throw invalidField('name', 'must have 1 to 256 bytes: a name cannot be removed');
}

/** An experiment by its id or its name; undefined if neither is set. Errors: INVALID_REQUEST if both are. */
export function toExperimentReference(request: {
  readonly experimentId: string;
  readonly experimentName: string;
}): ExperimentReference | undefined {
  const { experimentId: id, experimentName: name } = request;
  if (id !== '' && name !== '') {
    throw invalidField('experiment_name', 'must be empty when experiment_id is set: use one of the two');
  }
  if (id !== '') return { id };
  return name === '' ? undefined : { name };
}
