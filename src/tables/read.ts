import type { MessageInitShape } from '@bufbuild/protobuf';
import type { Rollout } from '../../gen/es/anabranch/v1/rollout_pb.js';
import type { ListRolloutsRequestSchema } from '../../gen/es/anabranch/v1/rollout_service_pb.js';

import { type Trajectory, View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { StepScope } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type AnabranchClient, readTrajectoryParts, type TrajectoryReadOptions } from '../client/index.ts';
import { TableError } from './column.ts';
import type { StepOfTrajectory } from './sources.ts';

const PAGE_SIZE = 1000;

/** Reads the steps of the trajectories that match a filter. Errors: TableError if a trajectory cannot be read whole. */
export async function* readStepRows(
  client: AnabranchClient,
  options: TrajectoryReadOptions,
): AsyncGenerator<StepOfTrajectory, void, undefined> {
  for await (const { trajectory, ownerId, steps, deleted, error } of readTrajectoryParts(client, options)) {
    for (const step of steps) yield { trajectory, ownerId, step };
    if (deleted) throw new TableError(`Trajectory ${trajectory.id} was deleted meanwhile. Run the command again.`);
    if (error !== undefined) {
      throw new TableError(`Trajectory ${trajectory.id} cannot be read whole: ${error.message}`);
    }
  }
}

/** Reads the trajectories that match a filter, without steps. */
export async function* readTrajectoryRows(
  client: AnabranchClient,
  options: TrajectoryReadOptions,
): AsyncGenerator<Trajectory, void, undefined> {
  const request = { ...options, steps: StepScope.NONE };
  for await (const { trajectory, done } of readTrajectoryParts(client, request)) if (done) yield trajectory;
}

export type RolloutFilter = Omit<
  MessageInitShape<typeof ListRolloutsRequestSchema>,
  '$typeName' | '$unknown' | 'pageSize' | 'pageToken'
>;

/** Reads the rollouts of runs that match a filter, run by run. */
export async function* readRolloutRows(
  client: AnabranchClient,
  runIds: AsyncIterable<string>,
  { signal, ...filter }: RolloutFilter & { readonly signal: AbortSignal },
): AsyncGenerator<Rollout, void, undefined> {
  for await (const runId of runIds) {
    for (let pageToken = ''; ; ) {
      const request = { view: View.FULL, ...filter, runId, pageSize: PAGE_SIZE, pageToken };
      const page = await client.rollouts.listRollouts(request, { signal });
      yield* page.rollouts;
      pageToken = page.nextPageToken;
      if (pageToken === '') break;
    }
  }
}

/** Reads the ids of the runs of an experiment; of all runs if its id is empty. */
export async function* readRunIds(
  client: AnabranchClient,
  experimentId: string,
  signal: AbortSignal,
): AsyncGenerator<string, void, undefined> {
  for (let pageToken = ''; ; ) {
    const request = { experimentId, pageSize: PAGE_SIZE, pageToken };
    const page = await client.runs.listRuns(request, { signal });
    for (const { run } of page.runs) if (run !== undefined) yield run.id;
    pageToken = page.nextPageToken;
    if (pageToken === '') return;
  }
}
