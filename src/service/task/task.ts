import {
  TaskSchema,
  ValidatorSchema,
  type Task as WireTask,
  type Validator as WireValidator,
} from '../../../gen/es/anabranch/v1/rollout_pb.js';
import { RolloutService, type TaskUpsert as WireUpsert } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { invalidField, taskNotFound } from '../../domain/errors.ts';
import type { Task, Validator } from '../../domain/rollout.ts';
import type { View } from '../../store/contract/request.ts';
import type { TaskUpsert, ValidatorUpsert } from '../../store/contract/task.ts';
import type { Ids } from '../../stream/app.ts';
import { messageOf, sizerOf } from '../answer/message.ts';
import { pageOf } from '../answer/page.ts';
import { fromInstant, requireDistinct, setFilters, toView } from '../convert/values.ts';
import type { SomeMethods } from '../method.ts';
import { pageArgsOf } from '../request/page_token.ts';

const taskBytes = sizerOf(TaskSchema);

export const taskMethods = {
  /** Creates or updates all tasks or none. Unset fields of existing tasks stay unchanged. */
  async upsertTasks({ tasks }, { app, caller }) {
    requireDistinct(tasks, ({ id }) => [id], 'tasks[].id');
    const upserts = tasks.map((task, i) => toUpsert(task, `tasks[${i}]`, app.ids));
    const { created, updated, unchanged } = await app.store.upsertTasks(caller.namespace, upserts);
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
    const page = await pageOf(pageArgsOf({ app, caller }, RolloutService.method.listTasks, request), {
      view,
      fetch: (rows) => app.store.listTasks(caller.namespace, filter, rows, view),
      keyOf: ({ key }) => key,
      show: (row) => taskMessage(row, view),
      bytesOf: taskBytes,
    });
    return { tasks: page.items, nextPageToken: page.nextPageToken };
  },
} satisfies SomeMethods<typeof RolloutService>;

/** Errors: INVALID_REQUEST if a validator is both given and removed. */
function toUpsert(task: WireUpsert, path: string, ids: Ids): TaskUpsert {
  const { tags, prerequisites, validators, removedValidators, $typeName: _, $unknown: __, ...fields } = task;
  const both = removedValidators.findIndex((type) => Object.hasOwn(validators, type));
  if (both !== -1) {
    throw invalidField(
      `${path}.removed_validators[${both}]`,
      'must not be in `validators`, which creates or updates it',
    );
  }
  const upserts = Object.entries(validators).map(([type, validator]): [string, ValidatorUpsert] => {
    const { $typeName: ___, $unknown: ____, ...given } = validator;
    return [type, { ...given, newId: ids.uuid() }];
  });
  const lists = { tags: tags?.values, prerequisites: prerequisites?.values };
  return { ...fields, ...lists, validators: new Map(upserts), removedValidators };
}

/** BASIC omits validators and fields with JSON (FM7). */
export function taskMessage(task: Task, view: View): WireTask {
  const { key: _, tags, prerequisites, createTime, updateTime, inputJson, metadataJson, validators, ...fields } = task;
  const shown = view === 'FULL' ? [...validators] : [];
  return messageOf(TaskSchema, {
    ...fields,
    tags: [...tags],
    prerequisites: [...prerequisites],
    inputJson: view === 'FULL' ? inputJson : '',
    metadataJson: view === 'FULL' ? metadataJson : '',
    validators: Object.fromEntries(shown.map(([type, validator]) => [type, validatorMessage(validator)])),
    createTime: fromInstant(createTime),
    updateTime: fromInstant(updateTime),
  });
}

function validatorMessage({ createTime, updateTime, ...fields }: Validator): WireValidator {
  const times = { createTime: fromInstant(createTime), updateTime: fromInstant(updateTime) };
  return messageOf(ValidatorSchema, { ...fields, ...times });
}
