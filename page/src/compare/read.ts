import { type Step, type Trajectory, View } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  type CompareBranchesResponse,
  type CompareTrajectoriesResponse,
  StepScope,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { readSteps } from '../../../src/client/reader.ts';
import type { Api } from '../api.ts';
import { FINE_POINTS } from '../tree/growing_values.ts';
import type { Series } from '../tree/series.ts';

export interface Comparison {
  readonly trajectory: Trajectory;
  readonly rewards: Series;
  /** How it differs from the first trajectory. Undefined for the first. */
  readonly difference: CompareTrajectoriesResponse | undefined;
}

/** Compares trajectories with the first of them. */
export async function compareTrajectories(
  api: Api,
  ids: readonly string[],
  signal: AbortSignal,
): Promise<Comparison[]> {
  const [first = ''] = ids;
  return Promise.all(
    ids.map(async (id, at) => {
      const request = { trajectoryId: first, otherTrajectoryId: id };
      const [{ trajectory }, rewards, difference] = await Promise.all([
        api.trajectories.getTrajectory({ trajectoryId: id }, { signal }),
        readLineageSums(api, id, signal),
        at === 0 ? undefined : api.trajectories.compareTrajectories(request, { signal }),
      ]);
      if (trajectory === undefined) throw new Error('the response of the server has no trajectory');
      return { trajectory, rewards, difference };
    }),
  );
}

async function readLineageSums(api: Api, id: string, signal: AbortSignal): Promise<Series> {
  const request = { trajectoryIds: [id], steps: StepScope.LINEAGE, maxPoints: FINE_POINTS };
  for await (const { series } of api.trajectories.readStepSeries(request, { signal })) {
    for (const { stepNumbers, values } of series) {
      return { steps: Float64Array.from(stepNumbers, Number), values: Float64Array.from(values) };
    }
  }
  return { steps: new Float64Array(), values: new Float64Array() };
}

/** Reads the steps of trajectories from a step on, for columns side by side: by id and step number. */
export async function readColumns(
  api: Api,
  ids: readonly string[],
  { from, count }: { readonly from: number; readonly count: number },
  signal: AbortSignal,
): Promise<ReadonlyMap<string, ReadonlyMap<number, Step>>> {
  const range = { startStepNumber: BigInt(from), endStepNumber: BigInt(from + count), view: View.FULL };
  const columns = await Promise.all(
    ids.map(async (trajectoryId) => {
      const steps = new Map<number, Step>();
      for await (const { step } of readSteps(api, { trajectoryId, ...range, signal })) {
        steps.set(Number(step.stepNumber), step);
      }
      return [trajectoryId, steps] as const;
    }),
  );
  return new Map(columns);
}

/** Trajectories of a tree that are offered. */
const OFFERED = 1000;

/** Returns trajectories of a tree, the newest first. */
export async function listTree(api: Api, treeId: string, signal: AbortSignal): Promise<readonly Trajectory[]> {
  if (treeId === '') return [];
  return (await api.trajectories.listTrajectories({ treeId, pageSize: OFFERED }, { signal })).trajectories;
}

/** What is compared: the branches of a tree with two values of a label. */
export interface BranchQuestion {
  readonly treeId: string;
  readonly label: string;
  readonly value: string;
  readonly otherValue: string;
}

export async function compareBranches(
  api: Api,
  question: BranchQuestion,
  signal: AbortSignal,
): Promise<CompareBranchesResponse> {
  return api.trajectories.compareBranches(question, { signal });
}
