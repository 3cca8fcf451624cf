import type { Group, GroupSettings } from '../../domain/rollout.ts';
import type { Page } from './page.ts';
import type { View } from './view.ts';

/** Identifies a group by id, or by number in a stage. */
export type GroupReference = { readonly id: string } | { readonly stageId: string; readonly number: bigint };

/** Every returned group has statistics. The number of statements does not grow with the page. */
export interface GroupStore {
  /**
   * Returns the group with this number, and creates it if it is missing. Safe for concurrent callers. Errors:
   * STAGE_NOT_FOUND.
   */
  getOrCreateGroup(namespace: string, newGroup: NewGroup): Promise<{ group: Group; created: boolean }>;

  getGroup(namespace: string, which: GroupReference): Promise<Group | undefined>;

  /** Lists groups by number. The cursor is the number of the last row. Errors: STAGE_NOT_FOUND. */
  listGroups(namespace: string, stageId: string, page: Page<bigint>, view: View): Promise<Group[]>;

  /**
   * Updates the given fields. Labels are replaced, and metrics are merged by key. Errors: GROUP_NOT_FOUND,
   * INVALID_REQUEST (more than 256 metrics).
   */
  updateGroup(namespace: string, id: string, changes: GroupChanges): Promise<Group>;
}

export interface NewGroup extends GroupSettings {
  readonly id: string;
  readonly stageId: string;
  readonly number: bigint;
}

/** Absent fields are not changed. Present but undefined fields are cleared. */
export interface GroupChanges extends Partial<GroupSettings> {
  readonly metrics?: ReadonlyMap<string, number>;
}
