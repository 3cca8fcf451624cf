import { ValidationOverrideSchema } from '../../../gen/es/anabranch/v1/rollout_pb.js';
import { RolloutService } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { sizerOf } from '../answer/message.ts';
import { pageOf } from '../answer/page.ts';
import { required } from '../convert/values.ts';
import type { SomeMethods } from '../method.ts';
import { pageArgsOf } from '../request/page_token.ts';
import { fromOverride, fromRollout, fromValidation } from './messages.ts';
import { toNewValidation } from './requests.ts';

const overrideBytes = sizerOf(ValidationOverrideSchema);

/** Validations and overrides of verdicts (M3). */
export const validationMethods = {
  /** Records one validation per name and attempt, and updates the verdict. */
  async recordValidation({ rolloutId, attempt, validation: given }, { app, caller }) {
    const found = toNewValidation(required(given, 'validation'), 'validation');
    const { rollout, validation } = await app.store.recordValidation(caller.namespace, rolloutId, attempt, found);
    return { validation: fromValidation(rollout.id, validation, 'FULL'), rollout: fromRollout(rollout, 'FULL') };
  },

  /** Sets or withdraws the verdict of an attempt by hand, and logs it. */
  async overrideValidation({ rolloutId, attempt, success, reason, actor }, { app, caller }) {
    const judgement = { success, reason, actor };
    const { rollout, override } = await app.store.overrideValidation(caller, rolloutId, attempt, judgement);
    return { override: fromOverride(override), rollout: fromRollout(rollout, 'FULL') };
  },

  /** Lists the newest first. */
  async listValidationOverrides(request, { app, caller }) {
    const page = await pageOf(pageArgsOf({ app, caller }, RolloutService.method.listValidationOverrides, request), {
      fetch: (rows) => app.store.listValidationOverrides(caller.namespace, request.rolloutId, rows),
      keyOf: ({ ordinal }) => ordinal,
      show: fromOverride,
      bytesOf: overrideBytes,
    });
    return { overrides: page.items, nextPageToken: page.nextPageToken };
  },
} satisfies SomeMethods<typeof RolloutService>;
