import { type Timestamp, timestampDate } from '@bufbuild/protobuf/wkt';
import { ConnectError } from '@connectrpc/connect';
import type { RunWithProgress } from '../../gen/es/anabranch/v1/run_service_pb.js';
import type { Trajectory } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { type AnabranchClient, connectClient } from '../../src/client/web/index.ts';

/** All calls of the page go through this module. */

export type Api = AnabranchClient;

/** Creates the client of the server that the page was loaded from. */
export function connectHere(): Api {
  return connectClient({ address: location.origin });
}

export async function listRuns(api: Api, signal: AbortSignal): Promise<readonly RunWithProgress[]> {
  return (await api.runs.listRuns({ pageSize: 200 }, { signal })).runs;
}

/** Returns the roots that belong to no run, the newest first. */
export async function listRoots(api: Api, signal: AbortSignal): Promise<readonly Trajectory[]> {
  const request = { rootsOnly: true, withoutRun: true, pageSize: 200 };
  return (await api.trajectories.listTrajectories(request, { signal })).trajectories;
}

export function dateOf(time: Timestamp | undefined): Date | undefined {
  return time === undefined ? undefined : timestampDate(time);
}

/** Returns what a person should read about an error. */
export function messageOf(error: unknown): string {
  if (error instanceof ConnectError) return error.rawMessage;
  return error instanceof Error ? error.message : String(error);
}
