import { type Address, LISTED } from '../address.ts';
import { bytesField, joined, textField, varintField } from './wire.ts';

/** Fields of WatchSubject. */
const [RUN, RUNS, TREE, TRAJECTORIES] = [1, 2, 3, 4] as const;

/**
 * Returns the subjects of a view as the view itself encodes them: as WatchSubjects. They are written without
 * descriptors, which are most of what the page loads. A view that asks for other bytes begins a watch of its own.
 */
export function firstSubjects({ view, id, query }: Address): Uint8Array[] {
  if (view === 'tree') return [bytesField(TREE, textField(1, id))];
  if (view === 'run') {
    const run = textField(1, id);
    const [allStages, rollouts, series] = [2, 4, 5].map((field) => varintField(field, 1)) as [
      Uint8Array,
      Uint8Array,
      Uint8Array,
    ];
    return [bytesField(RUN, joined([run, allStages, rollouts])), bytesField(RUN, joined([run, series]))];
  }
  if (view === 'home' && query.size === 0) {
    const [pageSize, byCreateTime] = [varintField(1, LISTED), varintField(15, 1)];
    const [rootsOnly, withoutRun] = [varintField(9, 1), varintField(16, 1)];
    return [
      bytesField(RUNS, joined([pageSize, byCreateTime])),
      bytesField(TRAJECTORIES, joined([pageSize, rootsOnly, withoutRun])),
    ];
  }
  return [];
}
