import type { RunWithProgress } from '../../../gen/es/anabranch/v1/run_service_pb.js';
import type { Trajectory } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import type { SearchHit } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { Api } from '../api.ts';
import type { Scope } from './scope.ts';

/** Runs, and trajectories, whose names or labels are listed. */
const LISTED = 20;
/** Matches of one call. The next call continues after them. */
const HITS = 100;

export interface Named {
  readonly runs: readonly RunWithProgress[];
  readonly trajectories: readonly Trajectory[];
}

/** Finds runs and trajectories by a part of their name or of a label's value. */
export async function findByName(api: Api, text: string, { kind, id }: Scope, signal: AbortSignal): Promise<Named> {
  if (text === '' || kind === 'trajectory') return { runs: [], trajectories: [] };
  const within = kind === 'tree' ? { treeId: id } : kind === 'run' ? { runId: id } : {};
  const [{ runs }, { trajectories }] = await Promise.all([
    kind === 'everywhere' ? api.runs.listRuns({ text, pageSize: LISTED }, { signal }) : { runs: [] },
    api.trajectories.listTrajectories({ text, pageSize: LISTED, ...within }, { signal }),
  ]);
  return { runs, trajectories };
}

export interface Search {
  readonly text: string;
  readonly scope: Scope;
  /** Continues an earlier search. Empty: from the beginning. */
  readonly token: string;
}

export interface Found {
  readonly hits: readonly SearchHit[];
  /** Steps that this call has searched so far. */
  readonly searched: number;
  /** Continues after these matches. Empty if everything was searched. */
  readonly token: string;
}

/** Finds a text in steps. Yields matches as they come, and how much has been searched. */
export async function* findInSteps(
  api: Api,
  { text, scope: { kind, id }, token }: Search,
  signal: AbortSignal,
): AsyncGenerator<Found> {
  const within =
    kind === 'tree'
      ? { treeId: id }
      : kind === 'run'
        ? { runId: id }
        : kind === 'trajectory'
          ? { trajectoryId: id }
          : {};
  const request = { text, ...within, maxHits: HITS, resumeToken: token };
  for await (const { hits, searchedSteps, resumeToken } of api.trajectories.searchSteps(request, { signal })) {
    yield { hits, searched: Number(searchedSteps), token: resumeToken };
  }
}

/** Returns the trajectories of matches by their ids. Those that were deleted meanwhile are left out. */
export async function readNames(
  api: Api,
  ids: readonly string[],
  signal: AbortSignal,
): Promise<ReadonlyMap<string, Trajectory>> {
  const read = ids.map((trajectoryId) => api.trajectories.getTrajectory({ trajectoryId }, { signal }));
  const found = new Map<string, Trajectory>();
  for (const each of await Promise.allSettled(read)) {
    const trajectory = each.status === 'fulfilled' ? each.value.trajectory : undefined;
    if (trajectory !== undefined) found.set(trajectory.id, trajectory);
  }
  return found;
}
