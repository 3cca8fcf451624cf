import type { Caller } from '../../domain/caller.ts';
import { invalidField, taskNotFound } from '../../domain/errors.ts';
import type { Task } from '../../domain/rollout.ts';
import type { BookView } from '../../store/contract/experiment.ts';
import type { TaskFilter, TaskUpsert, Upserted } from '../../store/contract/task.ts';
import type { App } from '../app.ts';
import { gatherPage } from '../page.ts';
import { cursorInt, makePageToken, type PageArgs, type PageOf, pageLimit, readPageToken } from '../page_token.ts';
import { taskBytes } from './row_bytes.ts';

/** All or none; what is not given never overwrites. */
export async function upsertTasks(
  app: App,
  caller: Caller,
  { tasks }: { readonly tasks: readonly TaskUpsert[] },
): Promise<Upserted> {
  const seen = new Set<string>();
  for (const [i, task] of tasks.entries()) {
    if (seen.has(task.id)) throw invalidField(`tasks[${i}].id`, 'must be there once in a call');
    seen.add(task.id);
  }
  return app.store.upsertTasks(caller.namespace, tasks);
}

/** Errors: TASK_NOT_FOUND. */
export async function getTask(app: App, caller: Caller, { taskId }: { readonly taskId: string }): Promise<Task> {
  const found = await app.store.getTask(caller.namespace, taskId);
  if (found === undefined) throw taskNotFound(taskId);
  return found;
}

export interface ListTasksArgs extends PageArgs {
  readonly filter: TaskFilter;
  readonly view: BookView;
}

/** Newest first; a page ends early at about 1 MiB. */
export async function listTasks(app: App, caller: Caller, args: ListTasksArgs): Promise<PageOf<Task>> {
  const { filter, view } = args;
  const cursor = readPageToken(args);
  const page = await gatherPage(
    {
      fetch: (limit, after) => app.store.listTasks(caller.namespace, filter, { limit, after }, view),
      keyOf: ({ key }) => key,
      bytesOf: (task) => taskBytes(task, view),
    },
    pageLimit(args.pageSize),
    cursor === undefined ? undefined : cursorInt(cursor, 0),
    view,
  );
  return { items: page.items, nextPageToken: page.more ? makePageToken(args.binding, [`${page.last}`]) : '' };
}
