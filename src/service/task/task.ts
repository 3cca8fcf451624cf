import { TaskSchema, type Task as WireTask } from '../../../gen/es/anabranch/v1/rollout_pb.js';
import { RolloutService, type TaskUpsert as WireUpsert } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { taskNotFound } from '../../domain/errors.ts';
import type { Task } from '../../domain/rollout.ts';
import type { TaskUpsert } from '../../store/contract/task.ts';
import type { View } from '../../store/contract/view.ts';
import { messageOf } from '../answer/message.ts';
import { pageOf } from '../answer/page.ts';
import { sizerOf } from '../answer/size.ts';
import { requireDistinct } from '../convert/distinct.ts';
import { setFilters } from '../convert/filter.ts';
import { fromInstant, toView } from '../convert/values.ts';
import type { SomeMethods } from '../method.ts';
import { pageArgsOf } from '../request/page_token.ts';

const taskBytes = sizerOf(TaskSchema);

export const taskMethods = {
  /** Creates or updates all tasks or none. Unset fields of existing tasks stay unchanged. */
  async upsertTasks({ tasks }, { app, caller }) {
    requireDistinct(tasks, ({ id }) => [id], 'tasks[].id');
    const { created, updated, unchanged } = await app.store.upsertTasks(caller.namespace, tasks.map(toUpsert));
    return { createdCount: created, updatedCount: updated, unchangedCount: unchanged };
  },

  async getTask({ taskId, view }, { app, caller }) {
    const found = await app.store.getTask(caller.namespace, taskId);
    if (found === undefined) throw taskNotFound(taskId);
    return { task: taskMessage(found, toView(view, 'FULL')) };
  },

  /** Lists tasks, newest first. */
  async listTasks(request, { app, caller }) {
    const { taskIds: ids, category, difficulty, sourceType, tags } = request;
    const view = toView(request.view, 'BASIC');
    const filter = setFilters({ ids, category, difficulty, sourceType, tags });
    const page = await pageOf(pageArgsOf(caller, RolloutService.method.listTasks, request), {
      view,
      fetch: (rows) => app.store.listTasks(caller.namespace, filter, rows, view),
      keyOf: ({ key }) => key,
      show: (row) => taskMessage(row, view),
      bytesOf: taskBytes,
    });
    return { tasks: page.items, nextPageToken: page.nextPageToken };
  },
} satisfies SomeMethods<typeof RolloutService>;

function toUpsert({ tags, prerequisites, $typeName: _, $unknown: __, ...fields }: WireUpsert): TaskUpsert {
  return { ...fields, tags: tags?.values, prerequisites: prerequisites?.values };
}

/** BASIC omits fields with JSON (FM7). */
export function taskMessage(task: Task, view: View): WireTask {
  const { key: _, tags, prerequisites, createTime, updateTime, inputJson, metadataJson, ...fields } = task;
  return messageOf(TaskSchema, {
    ...fields,
    tags: [...tags],
    prerequisites: [...prerequisites],
    inputJson: view === 'FULL' ? inputJson : '',
    metadataJson: view === 'FULL' ? metadataJson : '',
    createTime: fromInstant(createTime),
    updateTime: fromInstant(updateTime),
  });
}
