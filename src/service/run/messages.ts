import { create } from '@bufbuild/protobuf';
import {
  KindProgressSchema,
  PlanSchema,
  ProgressSchema,
  StageKind,
  StageProgressSchema,
  type KindProgress as WireKindProgress,
  type Plan as WirePlan,
  type Progress as WireProgress,
  type Run as WireRun,
  type StageProgress as WireStageProgress,
} from '../../../gen/es/anabranch/v1/run_pb.js';
import { StatusChangeSchema, type StatusChange as WireChange } from '../../../gen/es/anabranch/v1/status_pb.js';
import type { KindProgress, Progress, StageProgress } from '../../domain/progress.ts';
import type { StageKind as DomainKind, Plan, Run } from '../../domain/run.ts';
import type { StatusChange } from '../../store/contract/status_change.ts';
import type { View } from '../../store/contract/view.ts';
import { fromMillis, fromSeconds } from '../convert/duration.ts';
import { fromInstant, fromMap, fromStatus } from '../convert/values.ts';

/** BASIC omits fields with JSON (FM7). */
export function fromRun(run: Run, view: View): WireRun {
  const { experiment, parent, mainTrajectory } = run;
  const isFull = view === 'FULL';
  // A literal, because `create` sets fields by computed names, and V8 turns an object with more than about twelve such
  // fields into a slow hash table.
  const wire: WireRun = {
    $typeName: 'anabranch.v1.Run',
    id: run.id,
    number: run.number,
    experimentId: experiment.id,
    experimentName: experiment.name,
    name: run.name,
    description: run.description,
    configJson: isFull ? run.configJson : '',
    configOverridesJson: isFull ? run.configOverridesJson : '',
    removedConfigPaths: isFull ? [...run.removedConfigPaths] : [],
    metadataJson: isFull ? run.metadataJson : '',
    resultJson: isFull ? run.resultJson : '',
    labels: fromMap(run.labels),
    treeId: run.tree.id,
    parentId: parent?.id ?? '',
    mainTrajectoryId: mainTrajectory?.id ?? '',
    metrics: fromMap(run.metrics),
    heartbeatTimeout: fromMillis(run.heartbeatTimeoutMs),
    failWhenStale: run.failWhenStale,
    stale: run.stale,
    status: fromStatus(run.status),
    statusMessage: run.statusMessage,
    phase: run.phase,
    createTime: fromInstant(run.createTime),
    updateTime: fromInstant(run.updateTime),
    revision: run.revision,
  };
  if (run.plan !== undefined) wire.plan = fromPlan(run.plan);
  if (parent !== undefined) wire.branchPoint = parent.branchPoint;
  if (mainTrajectory !== undefined) {
    wire.nextStepNumber = mainTrajectory.nextStepNumber;
    wire.rewardSum = mainTrajectory.rewardSum;
  }
  if (run.heartbeatTime !== undefined) wire.heartbeatTime = fromInstant(run.heartbeatTime);
  if (run.startTime !== undefined) wire.startTime = fromInstant(run.startTime);
  if (run.endTime !== undefined) wire.endTime = fromInstant(run.endTime);
  return wire;
}

export function fromProgress(progress: Progress): WireProgress {
  const wire = create(ProgressSchema);
  if (progress.percent !== undefined) wire.percent = progress.percent;
  if (progress.remainingSeconds !== undefined) wire.estimatedRemaining = fromSeconds(progress.remainingSeconds);
  wire.turnsDone = progress.turnsDone;
  wire.turnsExpected = progress.turnsExpected;
  wire.substepsDone = progress.substepsDone;
  wire.substepsExpected = progress.substepsExpected;
  if (progress.meanTurnSeconds !== undefined) wire.meanTurnDuration = fromSeconds(progress.meanTurnSeconds);
  if (progress.meanSubstepSeconds !== undefined) wire.meanSubstepDuration = fromSeconds(progress.meanSubstepSeconds);
  wire.kinds = progress.kinds.map(fromKindProgress);
  wire.openStages = progress.openStages.map(fromStageProgress);
  return wire;
}

export function fromStatusChange(change: StatusChange): WireChange {
  const wire = create(StatusChangeSchema);
  wire.ordinal = change.ordinal;
  if (change.oldStatus !== undefined) wire.oldStatus = fromStatus(change.oldStatus);
  wire.newStatus = fromStatus(change.newStatus);
  wire.phase = change.phase;
  wire.message = change.message;
  wire.metadataJson = change.metadataJson;
  wire.actor = change.actor;
  if (change.progressPercent !== undefined) wire.progressPercent = change.progressPercent;
  wire.changeTime = fromInstant(change.changeTime);
  return wire;
}

function fromKindProgress({ kind, ...counts }: KindProgress): WireKindProgress {
  return create(KindProgressSchema, { kind: StageKind[kind satisfies DomainKind], ...counts });
}

function fromStageProgress({ id, kind, status, percent, ...rest }: StageProgress): WireStageProgress {
  const wire = create(StageProgressSchema, { stageId: id, kind: StageKind[kind], status: fromStatus(status), ...rest });
  if (percent !== undefined) wire.percent = percent;
  return wire;
}

function fromPlan({ stagePlans, concurrency }: Plan): WirePlan {
  const plans = stagePlans.map((plan) => ({ ...plan, kind: StageKind[plan.kind] }));
  return create(PlanSchema, { stagePlans: plans, concurrency });
}
