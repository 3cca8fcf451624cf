import { create } from '@bufbuild/protobuf';
import {
  type SearchStepsRequest,
  SearchStepsResponseSchema,
  TrajectoryService,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { findExperiment, findRun, findTrajectory } from '../../stream/find.ts';
import { type SearchArgs, type SearchPosition, searchSteps as search } from '../../stream/trajectories/search.ts';
import type { Call, ServerStream } from '../method.ts';
import { type Cursor, tokensOf } from '../request/query_tokens.ts';

const rpc = TrajectoryService.method.searchSteps;

/** Matches of a request that names no number. */
const DEFAULT_HITS = 100;

/** Searches the texts of steps (RD10). */
export const searchSteps: ServerStream<typeof rpc> = {
  async *messages(request, call) {
    const { app, caller, signal } = call;
    const tokens = tokensOf(call, rpc, request);
    const args = {
      text: request.text,
      maxHits: request.maxHits || DEFAULT_HITS,
      after: await tokens.open(request.resumeToken, positionOf),
      in: await scopeOf(request, call),
      signal,
    };
    for await (const { hits, searchedSteps, position } of search(app, caller, args)) {
      const resumeToken =
        position === undefined ? '' : await tokens.seal([`${position.key}`, `${position.stepNumber}`]);
      yield create(SearchStepsResponseSchema, {
        hits: hits.map(({ trajectoryId, stepNumber, field, before, match, after }) => {
          return { trajectoryId, stepNumber, field, before, match, after };
        }),
        searchedSteps,
        resumeToken,
      });
    }
  },
};

/** Errors: TRAJECTORY_NOT_FOUND, RUN_NOT_FOUND, EXPERIMENT_NOT_FOUND. */
async function scopeOf(request: SearchStepsRequest, { app, caller }: Call): Promise<SearchArgs['in']> {
  const { trajectoryId, treeId, runId, experimentId, taskId } = request;
  if (trajectoryId !== '') return findTrajectory(app, caller, trajectoryId);
  if (treeId !== '') return { treeId: (await findTrajectory(app, caller, treeId)).treeId };
  if (runId !== '') return { runId: (await findRun(app, caller, runId)).id };
  if (experimentId !== '') return { experimentId: (await findExperiment(app, caller, { id: experimentId })).id };
  return taskId === '' ? {} : { taskId };
}

function positionOf([key, stepNumber]: Cursor): SearchPosition {
  return { key: BigInt(key!), stepNumber: BigInt(stepNumber!) };
}
