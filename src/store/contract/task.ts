import type { Task, Validator } from '../../domain/rollout.ts';
import type { Given } from './given.ts';
import type { Page } from './page.ts';
import type { View } from './view.ts';

/** The catalogue: tasks by id, and validators by type in a task. Upserts do not change absent fields. */
export interface TaskStore {
  /** Upserts all tasks or none. The caller rejects duplicate ids. Safe for concurrent callers. */
  upsertTasks(namespace: string, tasks: readonly TaskUpsert[]): Promise<Upserted>;

  getTask(namespace: string, id: string): Promise<Task | undefined>;

  /** Lists tasks, newest first. The cursor is the key of the last row. */
  listTasks(namespace: string, filter: TaskFilter, page: Page<bigint>, view: View): Promise<Task[]>;

  /**
   * Upserts all validators or none. Returns ids in the order given. Safe for concurrent callers. Errors:
   * TASK_NOT_FOUND.
   */
  upsertValidators(
    namespace: string,
    validators: readonly ValidatorUpsert[],
  ): Promise<{ readonly ids: readonly string[]; readonly created: number }>;

  getValidator(namespace: string, id: string): Promise<Validator | undefined>;

  /** Lists validators by type in order of bytes. The cursor is the last type. Errors: TASK_NOT_FOUND. */
  listValidators(namespace: string, taskId: string, page: Page<string>): Promise<Validator[]>;
}

/** Undefined fields are not changed; in a new task they are empty. */
export type TaskUpsert = Pick<Task, 'id'> & Given<Omit<Task, 'key' | 'id' | 'createTime' | 'updateTime'>>;

export interface Upserted {
  readonly created: number;
  readonly updated: number;
  readonly unchanged: number;
}

/** Undefined fields are not changed; in a new validator they are empty. `newId` is the id of a new validator. */
export type ValidatorUpsert = { readonly newId: string } & Pick<Validator, 'taskId' | 'type'> &
  Given<Omit<Validator, 'key' | 'id' | 'taskId' | 'type' | 'createTime' | 'updateTime'>>;

/** Conditions are combined with AND. */
export interface TaskFilter {
  readonly ids?: readonly string[];
  readonly category?: string;
  readonly difficulty?: string;
  readonly sourceType?: string;
  readonly tags?: readonly string[];
}
