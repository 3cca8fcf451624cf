import { ValidatorSchema, type Validator as WireValidator } from '../../../gen/es/anabranch/v1/rollout_pb.js';
import { RolloutService } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { validatorNotFound } from '../../domain/errors.ts';
import type { Validator } from '../../domain/rollout.ts';
import { messageOf } from '../answer/message.ts';
import { pageByKey } from '../answer/page.ts';
import { sizerOf } from '../answer/size.ts';
import { requireDistinct } from '../convert/distinct.ts';
import { fromInstant } from '../convert/values.ts';
import type { SomeMethods } from '../method.ts';
import { pageArgsOf } from '../request/page_token.ts';

const validatorBytes = sizerOf(ValidatorSchema);

export const validatorMethods = {
  /** Creates or updates all validators or none. Unset fields of existing validators stay unchanged. */
  async upsertValidators({ validators }, { app, caller }) {
    const description = () => 'must be unique for a task within a request';
    requireDistinct(validators, ({ taskId, type }) => [taskId, type], 'validators[].type', description);
    const upserts = validators.map(({ $typeName: _, $unknown: __, ...fields }) => {
      return { ...fields, newId: app.ids.uuid() };
    });
    const { ids, created } = await app.store.upsertValidators(caller.namespace, upserts);
    return { validatorIds: [...ids], createdCount: created };
  },

  async getValidator({ validatorId }, { app, caller }) {
    const found = await app.store.getValidator(caller.namespace, validatorId);
    if (found === undefined) throw validatorNotFound(validatorId);
    return { validator: validatorMessage(found) };
  },

  /** Lists validators by type. */
  async listValidators(request, { app, caller }) {
    const page = await pageByKey<Validator, WireValidator, string>(
      pageArgsOf(caller, RolloutService.method.listValidators, request),
      {
        fetch: (rows) => app.store.listValidators(caller.namespace, request.taskId, rows),
        keyOf: ({ type }) => type,
        readKey: ([type = '']) => type,
        show: validatorMessage,
        bytesOf: validatorBytes,
      },
    );
    return { validators: page.items, nextPageToken: page.nextPageToken };
  },
} satisfies SomeMethods<typeof RolloutService>;

export function validatorMessage({ key: _, createTime, updateTime, ...fields }: Validator): WireValidator {
  const times = { createTime: fromInstant(createTime), updateTime: fromInstant(updateTime) };
  return messageOf(ValidatorSchema, { ...fields, ...times });
}
