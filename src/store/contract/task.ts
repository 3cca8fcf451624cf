import type { Task, Validator } from '../../domain/rollout.ts';
import type { BookView } from './experiment.ts';
import type { Page } from './page.ts';

/** The catalogue: tasks by their names, validators by their type in a task. Both are upserted; what is not given never overwrites. */
export interface TaskStore {
  /** All or none; two with one id in a call are refused before. Race-free. */
  upsertTasks(namespace: string, tasks: readonly TaskUpsert[]): Promise<Upserted>;

  getTask(namespace: string, id: string): Promise<Task | undefined>;

  /** Newest first. The cursor is the key of the last row. */
  listTasks(namespace: string, filter: TaskFilter, page: Page<bigint>, view: BookView): Promise<Task[]>;

  /** All or none, in the order given. Race-free. Errors: TASK_NOT_FOUND. */
  upsertValidators(
    namespace: string,
    validators: readonly ValidatorUpsert[],
  ): Promise<{ readonly ids: readonly string[]; readonly created: number }>;

  getValidator(namespace: string, id: string): Promise<Validator | undefined>;

  /** By type in order of bytes. The cursor is the last type. Errors: TASK_NOT_FOUND. */
  listValidators(namespace: string, taskId: string, page: Page<string>): Promise<Validator[]>;
}

/** What is undefined is left as it is; of a new task it is empty. */
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

/** What is undefined is left as it is; of a new validator it is empty. `newId` is its id if it is made. */
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

/** Filters that are set must all hold. */
export interface TaskFilter {
  readonly ids?: readonly string[];
  readonly category?: string;
  readonly difficulty?: string;
  readonly sourceType?: string;
  readonly tags?: readonly string[];
}
