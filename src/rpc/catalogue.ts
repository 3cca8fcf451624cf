import { create } from '@bufbuild/protobuf';
import type { ServiceImpl } from '@connectrpc/connect';
import {
  GetTaskResponseSchema,
  GetValidatorResponseSchema,
  ListTasksResponseSchema,
  ListValidatorsResponseSchema,
  RolloutService,
  UpsertTasksResponseSchema,
  UpsertValidatorsResponseSchema,
} from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { getTask, listTasks, upsertTasks } from '../app/rollout/task.ts';
import { getValidator, listValidators, upsertValidators } from '../app/rollout/validator.ts';
import { toView } from '../service/convert/values.ts';
import { pageArgsOf } from '../service/request/page_args.ts';
import { unary, type Wire } from './call.ts';
import { toTaskFilter, toTaskUpsert, toValidatorUpsert } from './convert/rollout_in.ts';
import { fromTask, fromValidator } from './convert/rollout_out.ts';

const rpc = RolloutService.method;
type Service = ServiceImpl<typeof RolloutService>;

/** What there is to be tried, and how it is judged. */
export function catalogueMethods(
  wire: Wire,
): Pick<Service, 'upsertTasks' | 'getTask' | 'listTasks' | 'upsertValidators' | 'getValidator' | 'listValidators'> {
  return {
    upsertTasks: unary(wire, rpc.upsertTasks, 'write', async ({ tasks }, { app, caller }) => {
      const { created, updated, unchanged } = await upsertTasks(app, caller, { tasks: tasks.map(toTaskUpsert) });
      const counts = { createdCount: created, updatedCount: updated, unchangedCount: unchanged };
      return create(UpsertTasksResponseSchema, counts);
    }),

    getTask: unary(wire, rpc.getTask, 'read', async ({ taskId, view }, { app, caller }) => {
      const found = await getTask(app, caller, { taskId });
      return create(GetTaskResponseSchema, { task: fromTask(found, toView(view, 'FULL')) });
    }),

    listTasks: unary(wire, rpc.listTasks, 'read', async (request, { app, caller }) => {
      const view = toView(request.view, 'BASIC');
      const page = await listTasks(app, caller, {
        filter: toTaskFilter(request),
        view,
        ...pageArgsOf(caller, rpc.listTasks, request),
      });
      const tasks = page.items.map((task) => fromTask(task, view));
      return create(ListTasksResponseSchema, { tasks, nextPageToken: page.nextPageToken });
    }),

    upsertValidators: unary(wire, rpc.upsertValidators, 'write', async ({ validators }, { app, caller }) => {
      const upserts = validators.map(toValidatorUpsert);
      const { ids, created } = await upsertValidators(app, caller, { validators: upserts });
      return create(UpsertValidatorsResponseSchema, { validatorIds: [...ids], createdCount: created });
    }),

    getValidator: unary(wire, rpc.getValidator, 'read', async ({ validatorId }, { app, caller }) => {
      const validator = fromValidator(await getValidator(app, caller, { validatorId }));
      return create(GetValidatorResponseSchema, { validator });
    }),

    listValidators: unary(wire, rpc.listValidators, 'read', async (request, { app, caller }) => {
      const page = await listValidators(app, caller, {
        taskId: request.taskId,
        ...pageArgsOf(caller, rpc.listValidators, request),
      });
      const validators = page.items.map(fromValidator);
      return create(ListValidatorsResponseSchema, { validators, nextPageToken: page.nextPageToken });
    }),
  };
}
