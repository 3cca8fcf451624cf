import type { Instant } from './instant.ts';

/** The order of a list of trajectories or runs. Ties are in order of creation, in the same direction. */
export interface ListSort {
  readonly by: 'CREATION' | 'UPDATE_TIME' | 'NAME' | 'REWARD';
  readonly ascending: boolean;
}

/**
 * The value of a row that an order compares. Undefined in order of creation, and for no reward or NaN, which are last.
 */
export type SortValue = string | number | Instant | undefined;

/** The order of a page that is not in order of creation, newest first, and the value of its cursor. */
export interface Sorted {
  readonly sort?: ListSort | undefined;
  readonly value?: SortValue;
}

/** Returns the value of a row that an order compares. */
export function sortValue(
  { by }: ListSort,
  row: { readonly updateTime: Instant; readonly name: string; readonly reward: number | undefined },
): SortValue {
  switch (by) {
    case 'CREATION':
      return undefined;
    case 'UPDATE_TIME':
      return row.updateTime;
    case 'NAME':
      return row.name;
    case 'REWARD':
      return Number.isNaN(row.reward) ? undefined : row.reward;
  }
}
