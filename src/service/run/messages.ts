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
import type { Caller } from '../../domain/caller.ts';
import { type KindProgress, type Progress, progressOf, type StageProgress } from '../../domain/progress.ts';
import type { StageKind as DomainKind, Plan, Run } from '../../domain/run.ts';
import type { View } from '../../store/contract/request.ts';
import type { StatusChange } from '../../store/contract/status_change.ts';
import type { App } from '../../stream/app.ts';
import { messageOf, sizerOf } from '../answer/message.ts';
import { fromInstant, fromMap, fromMillis, fromSeconds, fromStatus } from '../convert/values.ts';

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
  const { remainingSeconds, meanTurnSeconds, meanSubstepSeconds, kinds, openStages, ...counts } = progress;
  return messageOf(ProgressSchema, {
    ...counts,
    estimatedRemaining: fromSeconds(remainingSeconds),
    meanTurnDuration: fromSeconds(meanTurnSeconds),
    meanSubstepDuration: fromSeconds(meanSubstepSeconds),
    kinds: kinds.map(fromKindProgress),
    openStages: openStages.map(fromStageProgress),
  });
}

export function fromStatusChange({ oldStatus, newStatus, changeTime, ...fields }: StatusChange): WireChange {
  const statuses = { oldStatus: oldStatus && fromStatus(oldStatus), newStatus: fromStatus(newStatus) };
  return messageOf(StatusChangeSchema, { ...fields, ...statuses, changeTime: fromInstant(changeTime) });
}

function fromKindProgress({ kind, ...counts }: KindProgress): WireKindProgress {
  return create(KindProgressSchema, { kind: StageKind[kind satisfies DomainKind], ...counts });
}

function fromStageProgress({ id, kind, status, ...rest }: StageProgress): WireStageProgress {
  return messageOf(StageProgressSchema, { stageId: id, kind: StageKind[kind], status: fromStatus(status), ...rest });
}

function fromPlan({ stagePlans, concurrency }: Plan): WirePlan {
  const plans = stagePlans.map((plan) => ({ ...plan, kind: StageKind[plan.kind] }));
  return create(PlanSchema, { stagePlans: plans, concurrency });
}

export const progressBytes = sizerOf(ProgressSchema);

/** Returns the progress of runs, in their order (M2). Uses a fixed number of statements (K-C6). */
export async function progressesOf(app: App, caller: Caller, runs: readonly Run[]): Promise<WireProgress[]> {
  if (runs.length === 0) return [];
  const keys = runs.map(({ key }) => key);
  const tallies = await app.store.tallyRuns(caller.namespace, keys);
  return runs.map(({ key, id, status, plan }) => {
    const tally = tallies.get(key);
    if (tally === undefined) throw new Error(`the store returned no tally of run ${id}`);
    return fromProgress(progressOf(status, plan, tally));
  });
}
