import type { Task, Validator } from '../../domain/rollout.ts';
import type { Given, Page, View } from './request.ts';

/** The catalogue: tasks by id, with their validators. */
export interface TaskStore {
  /**
   * Upserts all tasks or none. The caller rejects duplicate ids. Safe for concurrent callers. Errors: INVALID_REQUEST
   * (too many or too large validators).
   */
  upsertTasks(namespace: string, tasks: readonly TaskUpsert[]): Promise<Upserted>;

  getTask(namespace: string, id: string): Promise<Task | undefined>;

  /** Lists tasks, newest first. The cursor is the key of the last row. BASIC omits validators. */
  listTasks(namespace: string, filter: TaskFilter, page: Page<bigint>, view: View): Promise<Task[]>;
}

/** Undefined fields are not changed; in a new task they are empty. */
export type TaskUpsert = Pick<Task, 'id'> &
  Given<Omit<Task, 'key' | 'id' | 'validators' | 'createTime' | 'updateTime'>> & {
    /** By type. Others are not changed. */
    readonly validators?: ReadonlyMap<string, ValidatorUpsert>;
    /** Types. Those without a validator are ignored. */
    readonly removedValidators?: readonly string[];
  };

export interface Upserted {
  readonly created: number;
  readonly updated: number;
  readonly unchanged: number;
}

/** Undefined fields are not changed; in a new validator they are empty. `newId` is the id of a new validator. */
export type ValidatorUpsert = { readonly newId: string } & Given<Omit<Validator, 'id' | 'createTime' | 'updateTime'>>;

/** Conditions are combined with AND. */
export interface TaskFilter {
  readonly ids?: readonly string[];
  readonly category?: string;
  readonly difficulty?: string;
  readonly sourceType?: string;
  readonly tags?: readonly string[];
}
