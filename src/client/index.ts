/**
 * The Anabranch client for Node.
 *
 *     import { connectClient, openWriter, readSteps } from 'anabranch/client';
 *
 *     const client = connectClient({ address: '127.0.0.1:50051' });
 *     const trajectoryId = crypto.randomUUID();
 *     const writer = await openWriter(client, { trajectoryId, create: { trajectory: { name: 'first' } } });
 *     await writer.append({ observations: [{ type: 'text', content: { text: 'hello' } }], reward: 1 });
 *     await writer.close();
 *     for await (const { step } of readSteps(client, { trajectoryId })) console.log(step.stepNumber);
 *     client.close();
 */
export { appendBatch, type EntryInit, type EntryResult } from './append_batch.ts';
export { type AnabranchClient, connectClient } from './connection.ts';
export { errorMetadata, reasonOf, retryDelayMs } from './errors.ts';
export type { Limits, ServerLimits } from './limits.ts';
export { type MetricLogger, type MetricLoggerOptions, openMetricLogger } from './metric_logger.ts';
export type { ConnectOptions } from './options.ts';
export {
  type OwnedStep,
  type ReadOptions,
  type ReadProgress,
  readSteps,
  type SearchOptions,
  searchSteps,
} from './reader.ts';
export { downloadState, type StateOptions, type StateReference, uploadState } from './states.ts';
export type { ActionInit, ObservationInit, StateInit, StepInit } from './step.ts';
export { parseStepReference, resolveStep, type StepReference } from './step_reference.ts';
export {
  readTrajectories,
  readTrajectoryParts,
  type TrajectoryPart,
  type TrajectoryReadOptions,
  type TrajectoryWithSteps,
} from './trajectories.ts';
export { type RunPicture, seriesId, type WatchOptions, watchRun } from './watch.ts';
export { type RunsPicture, type RunsWatchOptions, watchRuns } from './watch_runs.ts';
export { type TrajectoriesPicture, type TrajectoriesWatchOptions, watchTrajectories } from './watch_trajectories.ts';
export { type TreePicture, type TreeWatchOptions, watchTree } from './watch_tree.ts';
export type {
  AppendResult,
  Sealed,
  SealStatus,
  TrajectoryWriter,
  WriterEvent,
  WriterOptions,
} from './writer/contract.ts';
export { openWriter } from './writer/writer.ts';
