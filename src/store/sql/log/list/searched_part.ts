import type { TreeRange } from '../../../../domain/lineage.ts';
import type { StepFilter } from '../../../contract/step.ts';
import type { Belonging } from './list_conditions.ts';
import type { Rank, SearchOrder } from './listed_step.ts';

/** What a search is restricted to. */
export interface Search {
  readonly where: StepFilter;
  /** Ranges that are searched besides what `where.of` selects. */
  readonly inherited: readonly TreeRange[];
  readonly order: SearchOrder;
  /** The last step of the previous page, in this order. */
  readonly after: Rank | undefined;
  readonly limit: number;
}

/** Trajectories that are searched together: ranges of own steps, or all trajectories of a task, run or experiment. */
export type SearchedPart = readonly TreeRange[] | Belonging;

export function isRanges(part: SearchedPart): part is readonly TreeRange[] {
  return Array.isArray(part);
}
