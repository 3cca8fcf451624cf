import { create } from '@bufbuild/protobuf';
import type { ServiceImpl } from '@connectrpc/connect';
import {
  CancelRolloutResponseSchema,
  CompleteRolloutResponseSchema,
  CreateRolloutsResponseSchema,
  FailRolloutResponseSchema,
  GetRolloutResponseSchema,
  ListRolloutsResponseSchema,
  ListValidationOverridesResponseSchema,
  OverrideValidationResponseSchema,
  RecordValidationResponseSchema,
  ReleaseRolloutResponseSchema,
  RetryRolloutResponseSchema,
  RolloutService,
  SetRolloutPhaseResponseSchema,
  StartRolloutResponseSchema,
  UpdateRolloutResponseSchema,
} from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { createRollouts } from '../app/rollout/create.ts';
import { fitRecord } from '../app/rollout/fit.ts';
import { getRollout } from '../app/rollout/get.ts';
import { listRollouts } from '../app/rollout/list.ts';
import { endRollout, type RolloutMoveArgs, releaseRollout, retryRollout, startRollout } from '../app/rollout/move.ts';
import { setRolloutPhase, updateRollout } from '../app/rollout/update.ts';
import { listValidationOverrides, overrideValidation, recordValidation } from '../app/rollout/validation.ts';
import { required } from '../service/convert/place.ts';
import { toView } from '../service/convert/values.ts';
import { pageArgsOf } from '../service/request/page_args.ts';
import { unary, type Wire } from './call.ts';
import {
  toNewRollout,
  toNewValidation,
  toReport,
  toResult,
  toRolloutChanges,
  toRolloutFilter,
} from './convert/rollout_in.ts';
import { fromAttempt, fromBareValidation, fromOverride, fromRollout, fromValidation } from './convert/rollout_out.ts';

const rpc = RolloutService.method;
type Service = ServiceImpl<typeof RolloutService>;

/** Make, get, list, change. */
export function wholeRollouts(
  wire: Wire,
): Pick<Service, 'createRollouts' | 'getRollout' | 'listRollouts' | 'updateRollout' | 'setRolloutPhase'> {
  return {
    createRollouts: unary(wire, rpc.createRollouts, 'write', async ({ stageId, rollouts }, { app, caller }) => {
      const made = await createRollouts(app, caller, { stageId, rollouts: rollouts.map(toNewRollout) });
      return create(CreateRolloutsResponseSchema, { rollouts: made });
    }),

    getRollout: unary(wire, rpc.getRollout, 'read', async ({ rolloutId, view: asked }, { app, caller }) => {
      const view = toView(asked, 'FULL');
      const { rollout, attempts, validations, environmentIds, validationExtent, truncated } = fitRecord(
        await getRollout(app, caller, { rolloutId }),
        view,
      );
      return create(GetRolloutResponseSchema, {
        rollout: fromRollout(rollout, view),
        attempts: attempts.map((attempt) => fromAttempt(rollout.id, attempt, view)),
        validations: validations.map((validation) =>
          validationExtent === 'BARE'
            ? fromBareValidation(rollout.id, validation)
            : fromValidation(rollout.id, validation, validationExtent === 'WHOLE' ? 'FULL' : 'BASIC'),
        ),
        environmentIds: [...environmentIds],
        truncated,
      });
    }),

    listRollouts: unary(wire, rpc.listRollouts, 'read', async (request, { app, caller }) => {
      const view = toView(request.view, 'BASIC');
      const page = await listRollouts(app, caller, {
        filter: toRolloutFilter(request),
        view,
        ...pageArgsOf(caller, rpc.listRollouts, request),
      });
      const rollouts = page.items.map((rollout) => fromRollout(rollout, view));
      return create(ListRolloutsResponseSchema, { rollouts, nextPageToken: page.nextPageToken });
    }),

    updateRollout: unary(wire, rpc.updateRollout, 'write', async (request, { app, caller }) => {
      const { rolloutId, attempt } = request;
      const now = await updateRollout(app, caller, { rolloutId, attempt, changes: toRolloutChanges(request) });
      return create(UpdateRolloutResponseSchema, { rollout: fromRollout(now, 'FULL') });
    }),

    setRolloutPhase: unary(wire, rpc.setRolloutPhase, 'write', async (request, { app, caller }) => {
      const { rolloutId, attempt, phase, message } = request;
      const now = await setRolloutPhase(app, caller, { rolloutId, attempt, phase, message });
      return create(SetRolloutPhaseResponseSchema, { rollout: fromRollout(now, 'FULL') });
    }),
  };
}

/** L3. */
export function rolloutVerbs(
  wire: Wire,
): Pick<
  Service,
  'startRollout' | 'completeRollout' | 'failRollout' | 'cancelRollout' | 'releaseRollout' | 'retryRollout'
> {
  return {
    startRollout: unary(wire, rpc.startRollout, 'write', async (request, { app, caller }) => {
      const rollout = fromRollout(await startRollout(app, caller, toMove(request)), 'FULL');
      return create(StartRolloutResponseSchema, { rollout });
    }),

    completeRollout: unary(wire, rpc.completeRollout, 'write', async (request, { app, caller }) => {
      const ended = await endRollout(app, caller, {
        ...toMove(request),
        status: 'COMPLETED',
        result: toResult(request.result),
        expectedNextStepNumber: request.expectedNextStepNumber,
        report: toReport(request),
      });
      return create(CompleteRolloutResponseSchema, { rollout: fromRollout(ended, 'FULL') });
    }),

    failRollout: unary(wire, rpc.failRollout, 'write', async (request, { app, caller }) => {
      const ended = await endRollout(app, caller, {
        ...toMove(request),
        status: 'FAILED',
        result: toResult(request.result),
        report: toReport(request),
      });
      return create(FailRolloutResponseSchema, { rollout: fromRollout(ended, 'FULL') });
    }),

    cancelRollout: unary(wire, rpc.cancelRollout, 'write', async (request, { app, caller }) => {
      const { rolloutId, message, metadataJson } = request;
      const said = { message, metadataJson };
      const ended = await endRollout(app, caller, { rolloutId, attempt: undefined, said, status: 'CANCELLED' });
      return create(CancelRolloutResponseSchema, { rollout: fromRollout(ended, 'FULL') });
    }),

    releaseRollout: unary(wire, rpc.releaseRollout, 'write', async (request, { app, caller }) => {
      const { refundAttempt } = request;
      const args = { ...toMove(request), refundAttempt, report: toReport(request) };
      return create(ReleaseRolloutResponseSchema, {
        rollout: fromRollout(await releaseRollout(app, caller, args), 'FULL'),
      });
    }),

    retryRollout: unary(wire, rpc.retryRollout, 'write', async (request, { app, caller }) => {
      const rollout = fromRollout(await retryRollout(app, caller, toMove(request)), 'FULL');
      return create(RetryRolloutResponseSchema, { rollout });
    }),
  };
}

/** M3. */
export function verdicts(
  wire: Wire,
): Pick<Service, 'recordValidation' | 'overrideValidation' | 'listValidationOverrides'> {
  return {
    recordValidation: unary(wire, rpc.recordValidation, 'write', async (request, { app, caller }) => {
      const { rolloutId, attempt } = request;
      const found = toNewValidation(required(request.validation, 'validation'), 'validation');
      const { rollout, validation } = await recordValidation(app, caller, { rolloutId, attempt, validation: found });
      return create(RecordValidationResponseSchema, {
        validation: fromValidation(rollout.id, validation, 'FULL'),
        rollout: fromRollout(rollout, 'FULL'),
      });
    }),

    overrideValidation: unary(wire, rpc.overrideValidation, 'write', async (request, { app, caller }) => {
      const { rolloutId, attempt, success, reason, actor } = request;
      const judgement = { rolloutId, attempt, success, reason, actor };
      const { rollout, override } = await overrideValidation(app, caller, judgement);
      return create(OverrideValidationResponseSchema, {
        override: fromOverride(override),
        rollout: fromRollout(rollout, 'FULL'),
      });
    }),

    listValidationOverrides: unary(wire, rpc.listValidationOverrides, 'read', async (request, { app, caller }) => {
      const { rolloutId } = request;
      const page = await listValidationOverrides(app, caller, {
        rolloutId,
        ...pageArgsOf(caller, rpc.listValidationOverrides, request),
      });
      return create(ListValidationOverridesResponseSchema, {
        overrides: page.items.map(fromOverride),
        nextPageToken: page.nextPageToken,
      });
    }),
  };
}

/** What the verbs of workers have in common. */
function toMove(request: {
  readonly rolloutId: string;
  readonly attempt: number;
  readonly message: string;
  readonly metadataJson: string;
  readonly phase?: string | undefined;
}): RolloutMoveArgs {
  const { rolloutId, attempt, message, metadataJson, phase } = request;
  return { rolloutId, attempt, said: { message, metadataJson, ...(phase === undefined ? {} : { phase }) } };
}
