import type { Task, Validator } from '../../domain/rollout.ts';
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
export interface TaskUpsert {
  readonly id: string;
  readonly name: string | undefined;
  readonly description: string | undefined;
  readonly difficulty: string | undefined;
  readonly category: string | undefined;
  readonly appName: string | undefined;
  readonly sourceType: string | undefined;
  readonly maxTurns: bigint | undefined;
  readonly tags: readonly string[] | undefined;
  readonly prerequisites: readonly string[] | undefined;
  readonly inputJson: string | undefined;
  readonly metadataJson: string | undefined;
}

export interface Upserted {
  readonly created: number;
  readonly updated: number;
  readonly unchanged: number;
}

/** Undefined fields are not changed; in a new validator they are empty. `newId` is the id of a new validator. */
export interface ValidatorUpsert {
  readonly newId: string;
  readonly taskId: string;
  readonly type: string;
  readonly query: string | undefined;
  readonly method: string | undefined;
  readonly expectedResult: string | undefined;
  readonly configJson: string | undefined;
  readonly advisory: boolean | undefined;
}

/** Conditions are combined with AND. */
export interface TaskFilter {
  readonly ids?: readonly string[];
  readonly category?: string;
  readonly difficulty?: string;
  readonly sourceType?: string;
  readonly tags?: readonly string[];
}
