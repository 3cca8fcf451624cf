import { create } from '@bufbuild/protobuf';
import {
  ExperimentSchema,
  KindProgressSchema,
  PlanSchema,
  ProgressSchema,
  RunSchema,
  StageKind,
  StageProgressSchema,
  StageSchema,
  TimeSpanSchema,
  type Experiment as WireExperiment,
  type KindProgress as WireKindProgress,
  type Plan as WirePlan,
  type Progress as WireProgress,
  type Run as WireRun,
  type Stage as WireStage,
  type StageProgress as WireStageProgress,
} from '../../../gen/es/anabranch/v1/run_pb.js';
import { StatusChangeSchema, type StatusChange as WireChange } from '../../../gen/es/anabranch/v1/status_pb.js';
import type { listStatusChanges } from '../../app/run/status_changes.ts';
import type { KindProgress, Progress, StageProgress } from '../../domain/progress.ts';
import type { StageKind as DomainKind, Experiment, Plan, Run, Stage, TimeSpan } from '../../domain/run.ts';
import { fromMillis, fromSeconds } from './duration.ts';
import { fromInstant, fromMap, fromStatus } from './values.ts';

type View = 'BASIC' | 'FULL';

/** BASIC leaves out what holds JSON (FM7). */
export function fromExperiment(experiment: Experiment, view: View): WireExperiment {
  const wire = create(ExperimentSchema);
  wire.id = experiment.id;
  wire.name = experiment.name;
  wire.description = experiment.description;
  wire.environmentName = experiment.environmentName;
  wire.agentType = experiment.agentType;
  if (view === 'FULL') {
    wire.environmentConfigJson = experiment.environmentConfigJson;
    wire.agentConfigJson = experiment.agentConfigJson;
    wire.defaultConfigJson = experiment.defaultConfigJson;
    wire.metadataJson = experiment.metadataJson;
  }
  if (experiment.maxSteps !== undefined) wire.maxSteps = experiment.maxSteps;
  if (experiment.seed !== undefined) wire.seed = experiment.seed;
  wire.tags = [...experiment.tags];
  wire.runCount = experiment.runCount;
  wire.createTime = fromInstant(experiment.createTime);
  wire.updateTime = fromInstant(experiment.updateTime);
  return wire;
}

/** BASIC leaves out what holds JSON (FM7). */
export function fromRun(run: Run, view: View): WireRun {
  const wire = create(RunSchema);
  wire.id = run.id;
  wire.number = run.number;
  wire.experimentId = run.experiment.id;
  wire.experimentName = run.experiment.name;
  wire.name = run.name;
  wire.description = run.description;
  if (view === 'FULL') {
    wire.configJson = run.configJson;
    wire.configOverridesJson = run.configOverridesJson;
    wire.metadataJson = run.metadataJson;
    wire.resultJson = run.resultJson;
  }
  wire.labels = fromMap(run.labels);
  if (run.plan !== undefined) wire.plan = fromPlan(run.plan);
  wire.treeId = run.tree.id;
  if (run.parent !== undefined) {
    wire.parentId = run.parent.id;
    wire.branchPoint = run.parent.branchPoint;
  }
  if (run.mainTrajectory !== undefined) {
    wire.mainTrajectoryId = run.mainTrajectory.id;
    wire.nextStepNumber = run.mainTrajectory.nextStepNumber;
    wire.rewardSum = run.mainTrajectory.rewardSum;
  }
  wire.metrics = fromMap(run.metrics);
  wire.heartbeatTimeout = fromMillis(run.heartbeatTimeoutMs);
  wire.failWhenStale = run.failWhenStale;
  if (run.heartbeatTime !== undefined) wire.heartbeatTime = fromInstant(run.heartbeatTime);
  wire.stale = run.stale;
  fillLife(wire, run);
  return wire;
}

/** BASIC leaves out what holds JSON (FM7). */
export function fromStage(stage: Stage, view: View): WireStage {
  const wire = create(StageSchema);
  wire.id = stage.id;
  wire.runId = stage.run.id;
  wire.kind = StageKind[stage.kind];
  wire.number = stage.number;
  if (stage.batch !== undefined) wire.batch = stage.batch;
  wire.modelUri = stage.modelUri;
  wire.modelCheckpointUri = stage.modelCheckpointUri;
  wire.metrics = fromMap(stage.metrics);
  if (view === 'FULL') wire.metadataJson = stage.metadataJson;
  wire.completedSubsteps = stage.completedSubsteps;
  if (stage.totalSubsteps !== undefined) wire.totalSubsteps = stage.totalSubsteps;
  wire.timings = fromTimings(stage.timings);
  fillLife(wire, stage);
  return wire;
}

/** What runs and stages show of their lives alike. */
function fillLife(wire: WireRun | WireStage, row: Run | Stage): void {
  wire.status = fromStatus(row.status);
  wire.statusMessage = row.statusMessage;
  wire.phase = row.phase;
  if (row.startTime !== undefined) wire.startTime = fromInstant(row.startTime);
  if (row.endTime !== undefined) wire.endTime = fromInstant(row.endTime);
  wire.createTime = fromInstant(row.createTime);
  wire.updateTime = fromInstant(row.updateTime);
  wire.revision = row.revision;
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

export function fromStatusChange(change: Awaited<ReturnType<typeof listStatusChanges>>['items'][number]): WireChange {
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

export function fromTimings(timings: ReadonlyMap<string, TimeSpan>) {
  return fromMap(new Map([...timings].map(([name, span]) => [name, fromTimeSpan(span)])));
}

function fromTimeSpan({ startTime, endTime }: TimeSpan) {
  const wire = create(TimeSpanSchema);
  if (startTime !== undefined) wire.startTime = fromInstant(startTime);
  if (endTime !== undefined) wire.endTime = fromInstant(endTime);
  return wire;
}
