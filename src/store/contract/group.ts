import type { Group, OnSuccess } from '../../domain/rollout.ts';
import type { BookView } from './experiment.ts';
import type { Page } from './page.ts';

/** A group by its id, or by its number in a stage. */
export type GroupPlace = { readonly id: string } | { readonly stageId: string; readonly number: bigint };

/** Statistics come with every group, in a number of statements that does not grow with the page. */
export interface GroupStore {
  /** Gives the group of that number, made if it was not there. Race-free. Errors: STAGE_NOT_FOUND. */
  getOrCreateGroup(namespace: string, making: NewGroup): Promise<{ readonly group: Group; readonly created: boolean }>;

  getGroup(namespace: string, which: GroupPlace): Promise<Group | undefined>;

  /** By number. The cursor is the number of the last row. Errors: STAGE_NOT_FOUND. */
  listGroups(namespace: string, stageId: string, page: Page<bigint>, view: BookView): Promise<Group[]>;

  /** Labels are replaced, metrics merged by key. Errors: GROUP_NOT_FOUND, INVALID_REQUEST (over 256 metrics). */
  updateGroup(namespace: string, id: string, changes: GroupChanges): Promise<Group>;
}

export interface NewGroup {
  readonly id: string;
  readonly stageId: string;
  readonly number: bigint;
  readonly batch: bigint | undefined;
  readonly onSuccess: OnSuccess;
  readonly labels: ReadonlyMap<string, string>;
  readonly metadataJson: string;
}

/** What is not there stays; `undefined` that is there clears. */
export interface GroupChanges {
  readonly batch?: bigint | undefined;
  readonly onSuccess?: OnSuccess;
  readonly labels?: ReadonlyMap<string, string>;
  readonly metrics?: ReadonlyMap<string, number>;
  readonly metadataJson?: string;
}
