import { type Address, LISTED } from '../address.ts';
import { bytesField, joined, textField, varintField } from './wire.ts';

/**
 * Returns the watches of a view as the view itself encodes them: as WatchCalls. They are written without descriptors,
 * which are most of what the page loads. A view that asks for other bytes begins a watch of its own.
 */
export function firstCalls({ view, id, query }: Address): Uint8Array[] {
  if (view === 'tree') return [watchCall('TrajectoryService/WatchTree', textField(1, id))];
  if (view === 'run') {
    const run = textField(1, id);
    const [allStages, rollouts, series] = [2, 4, 5].map((field) => varintField(field, 1)) as [
      Uint8Array,
      Uint8Array,
      Uint8Array,
    ];
    return [joined([run, allStages, rollouts]), joined([run, series])].map((request) =>
      watchCall('RunService/WatchRun', request),
    );
  }
  if (view === 'home' && query.size === 0) {
    const [pageSize, byCreateTime] = [varintField(1, LISTED), varintField(15, 1)];
    const [rootsOnly, withoutRun] = [varintField(9, 1), varintField(16, 1)];
    const roots = joined([pageSize, rootsOnly, withoutRun]);
    return [
      watchCall('RunService/WatchRuns', bytesField(1, joined([pageSize, byCreateTime]))),
      watchCall('TrajectoryService/WatchTrajectories', bytesField(1, roots)),
    ];
  }
  return [];
}

function watchCall(method: string, request: Uint8Array): Uint8Array {
  return joined([textField(1, `anabranch.v1.${method}`), bytesField(2, request)]);
}
