import type { Step } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  type ReadStepSeriesRequest,
  StepScope,
  StepValue,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { numberAt, numberIn, stateNumber } from '../../../src/domain/numbers/pointer.ts';
import { partOf } from '../step/numbers.ts';
import { type Recorded, stepAt } from './recorded.ts';

/** A value of the steps of a trajectory, as ReadStepSeries returns it, with all its points: the page thins them. */
export interface RecordedSeries {
  readonly trajectoryId: string;
  readonly stepNumbers: bigint[];
  readonly values: number[];
  readonly nextStepNumber: bigint;
}

/** Returns the series of all wanted trajectories that the file has. */
export function seriesOf(recorded: Recorded, request: ReadStepSeriesRequest): RecordedSeries[] {
  const nodes = [...recorded.nodes.values()].flatMap(({ trajectory }) => trajectory ?? []);
  const treeId = recorded.nodes.get(request.treeId)?.trajectory?.treeId;
  const ids = request.trajectoryIds.length > 0 ? new Set(request.trajectoryIds) : undefined;
  const wanted = nodes.filter((each) => (ids === undefined ? each.treeId === treeId : ids.has(each.id)));
  return wanted.map(({ id, branchPoint = -1n, nextStepNumber }) => {
    const first = request.steps === StepScope.LINEAGE ? 0n : branchPoint + 1n;
    const start = first > request.startStepNumber ? first : request.startStepNumber;
    const end = least(nextStepNumber, request.endStepNumber ?? nextStepNumber);
    const series = { trajectoryId: id, stepNumbers: [] as bigint[], values: [] as number[], nextStepNumber: end };
    for (let at = start; at < end; at += 1n) {
      const step = stepAt(recorded, id, at)?.step;
      const value = step === undefined ? undefined : valueAt(recorded, request, step);
      if (value === undefined) continue;
      series.stepNumbers.push(at);
      series.values.push(value);
    }
    return series;
  });
}

function least(a: bigint, b: bigint): bigint {
  return a < b ? a : b;
}

function valueAt({ blobs }: Recorded, request: ReadStepSeriesRequest, step: Step): number | undefined {
  const { value, metricKey, stateName, pointer } = request;
  const path = pathOf(pointer);
  const first = (parts: Step['actions'] | Step['observations']) =>
    numberIn(parts.map(partOf), path, (digest) => blobs.get(digest));
  switch (value) {
    case StepValue.REWARD:
    case StepValue.REWARD_MEAN:
      return step.reward;
    case StepValue.METRIC:
      return step.metrics[metricKey];
    case StepValue.ACTION:
      return first(step.actions);
    case StepValue.OBSERVATION:
      return first(step.observations);
    case StepValue.INFO:
      return numberAt(step.infoJson, path);
    case StepValue.STATE: {
      const state = step.states.find(({ name }) => name === (stateName || 'env'));
      const bytes = blobs.get(state?.digest ?? '');
      return bytes === undefined ? undefined : stateNumber(bytes, state?.mediaType ?? '', path);
    }
    default:
      return step.rewardSum;
  }
}

function pathOf(pointer: string): readonly string[] {
  const parts = pointer.split('/').slice(1);
  return parts.map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'));
}
