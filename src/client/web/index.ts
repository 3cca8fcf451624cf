/**
 * The Anabranch client for browsers: unary calls, appendBatch(), readSteps(), readTrajectories() and watchRun().
 *
 *     import { connectClient, readSteps } from 'anabranch/client/web';
 *
 *     const client = connectClient({ address: 'http://127.0.0.1:50051' });
 *     const { trajectory } = await client.trajectories.createTrajectory({ name: 'first' });
 *     await client.trajectories.appendStep({ trajectoryId: trajectory!.id, step: { stepNumber: 0n, reward: 1 } });
 *     for await (const { step } of readSteps(client, { trajectoryId: trajectory!.id })) console.log(step.reward);
 *
 * openWriter() and uploadState() exist only in `anabranch/client`: they stream requests, which fetch() cannot do.
 */
export { appendBatch, type EntryInit, type EntryResult } from '../append_batch.ts';
export { errorMetadata, reasonOf, retryDelayMs } from '../errors.ts';
export {
  type OwnedStep,
  type ReadOptions,
  type ReadProgress,
  readSteps,
  type SearchOptions,
  searchSteps,
} from '../reader.ts';
export { parseStepReference, resolveStep, type StepReference } from '../step_reference.ts';
export { readTrajectories, type TrajectoryReadOptions, type TrajectoryWithSteps } from '../trajectories.ts';
export { type RunPicture, seriesId, type WatchOptions, watchRun } from '../watch.ts';
export { type RunsPicture, type RunsWatchOptions, watchRuns } from '../watch_runs.ts';
export { type TrajectoriesPicture, type TrajectoriesWatchOptions, watchTrajectories } from '../watch_trajectories.ts';
export { type TreePicture, type TreeWatchOptions, watchTree } from '../watch_tree.ts';
export { type AnabranchClient, connectClient } from './connection.ts';
export type { ConnectOptions } from './transport.ts';
