import type { Run } from '../../../gen/es/anabranch/v1/run_pb.js';
import type { AnabranchClient } from '../../../src/client/web/index.ts';
import type { Item } from './rows.ts';

/** Runs of a tree that are named. */
const PAGE = 1000;
const MOST_PAGES = 20;

type NamedRun = Pick<Run, 'id' | 'name' | 'mainTrajectoryId'>;

/** Returns the runs that were branched from one another. Their main trajectories are a tree, too. */
export async function readRunTree(
  { runs }: Pick<AnabranchClient, 'runs'>,
  runId: string,
  signal: AbortSignal,
): Promise<readonly NamedRun[]> {
  const found: NamedRun[] = [];
  let pageToken = '';
  for (let page = 0; runId !== '' && page < MOST_PAGES; page += 1) {
    const read = await runs.getRunTree({ runId, pageSize: PAGE, pageToken }, { signal });
    found.push(...read.runs);
    pageToken = read.nextPageToken;
    if (pageToken === '') break;
  }
  return found;
}

/** Names the main trajectories of runs. They have the names of their runs unless they have names of their own. */
export function withRuns(items: readonly Item[], runs: readonly NamedRun[]): readonly Item[] {
  if (runs.length === 0) return items;
  const byTrajectory = new Map(runs.map((run) => [run.mainTrajectoryId, run]));
  return items.map((item) => {
    const run = byTrajectory.get(item.id);
    return run === undefined ? item : { ...item, name: item.name || run.name, run: { id: run.id, name: run.name } };
  });
}
