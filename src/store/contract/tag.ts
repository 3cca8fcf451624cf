import type { Instant } from '../../domain/instant.ts';
import type { Page } from './page.ts';

/** B5: names for own and inherited steps of a trajectory, unique per trajectory. */
export interface TagStore {
  /**
   * Sets or moves a tag, under a lock against deletion. `expected` is the required current step: -1 if the tag must not
   * exist, undefined for no condition.
   * Errors: TRAJECTORY_NOT_FOUND, STEP_NOT_FOUND, TAG_MOVED.
   */
  setTag(
    namespace: string,
    trajectoryId: string,
    name: string,
    stepNumber: bigint,
    expected: bigint | undefined,
  ): Promise<Tag>;
  /** Errors: TRAJECTORY_NOT_FOUND, TAG_NOT_FOUND. */
  getTag(namespace: string, trajectoryId: string, name: string): Promise<Tag>;
  /**
   * Lists tags by name in order of bytes, or only the one with this name. The cursor is the last name. Errors:
   * TRAJECTORY_NOT_FOUND.
   */
  listTags(namespace: string, trajectoryId: string, page: Page<string>, name?: string): Promise<Tag[]>;
  /** Returns the first 16 tags by name of each of these trajectories of a tree. Omits those without tags. */
  readTreeTags(namespace: string, tree: bigint, keys: readonly bigint[]): Promise<ReadonlyMap<bigint, readonly Tag[]>>;
  /** Errors: TRAJECTORY_NOT_FOUND, TAG_NOT_FOUND. */
  deleteTag(namespace: string, trajectoryId: string, name: string): Promise<void>;
}

export interface Tag {
  readonly trajectoryId: string;
  readonly name: string;
  readonly stepNumber: bigint;
  readonly updateTime: Instant;
}
