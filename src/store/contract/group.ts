import type { Group, GroupSettings } from '../../domain/rollout.ts';
import type { Given, Page, View } from './request.ts';

/** Identifies a group by id, or by number in a stage. */
export type GroupReference = { readonly id: string } | { readonly stageId: string; readonly number: bigint };

/** Every returned group has statistics. The number of statements does not grow with the page. */
export interface GroupStore {
  /**
   * Creates the group with this number, or updates the given fields of the existing one. Labels are replaced, and
   * metrics are merged by key. Writes nothing if nothing changes. Safe for concurrent callers. Errors: STAGE_NOT_FOUND,
   * INVALID_REQUEST (more than 256 metrics).
   */
  upsertGroup(namespace: string, group: GroupUpsert): Promise<{ group: Group; created: boolean }>;

  getGroup(namespace: string, which: GroupReference): Promise<Group | undefined>;

  /** Lists groups by number. The cursor is the number of the last row. Errors: STAGE_NOT_FOUND. */
  listGroups(namespace: string, stageId: string, page: Page<bigint>, view: View): Promise<Group[]>;
}

/** Undefined fields are not changed. */
export interface GroupUpsert extends Given<GroupSettings> {
  /** Id of the group if it is created. */
  readonly id: string;
  readonly stageId: string;
  readonly number: bigint;
  readonly metrics?: ReadonlyMap<string, number>;
}
