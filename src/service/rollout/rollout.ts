import { RolloutService } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { createRollouts } from '../../app/rollout/create.ts';
import { fitRecord } from '../../app/rollout/fit.ts';
import { listRollouts } from '../../app/rollout/list.ts';
import { rolloutNotFound } from '../../domain/errors.ts';
import type { SealStatus } from '../../domain/lifecycle.ts';
import type { AttemptReport, RolloutEnd } from '../../store/contract/rollout.ts';
import { toView } from '../convert/values.ts';
import type { Call, Methods } from '../method.ts';
import { pageArgsOf } from '../request/page_args.ts';
import { fromAttempt, fromBareValidation, fromRollout, fromValidation } from './messages.ts';
import {
  type SaidRequest,
  tokenOf,
  toNewRollout,
  toReport,
  toResult,
  toRolloutChanges,
  toRolloutFilter,
  toSaid,
} from './requests.ts';

export const rolloutMethods: Methods<
  typeof RolloutService,
  | 'createRollouts'
  | 'getRollout'
  | 'listRollouts'
  | 'updateRollout'
  | 'setRolloutPhase'
  | 'startRollout'
  | 'completeRollout'
  | 'failRollout'
  | 'cancelRollout'
  | 'releaseRollout'
  | 'retryRollout'
> = {
  async createRollouts({ stageId, rollouts }, { app, caller }) {
    return { rollouts: await createRollouts(app, caller, { stageId, rollouts: rollouts.map(toNewRollout) }) };
  },

  async getRollout({ rolloutId, view: asked }, { app, caller }) {
    const found = await app.store.getRollout(caller.namespace, rolloutId);
    if (found === undefined) throw rolloutNotFound(rolloutId);
    const view = toView(asked, 'FULL');
    const { rollout, attempts, validations, environmentIds, validationExtent, truncated } = fitRecord(found, view);
    const toValidation = (validation: (typeof validations)[number]) =>
      validationExtent === 'BARE'
        ? fromBareValidation(rolloutId, validation)
        : fromValidation(rolloutId, validation, validationExtent === 'WHOLE' ? 'FULL' : 'BASIC');
    return {
      rollout: fromRollout(rollout, view),
      attempts: attempts.map((attempt) => fromAttempt(rolloutId, attempt, view)),
      validations: validations.map(toValidation),
      environmentIds: [...environmentIds],
      truncated,
    };
  },

  async listRollouts(request, { app, caller }) {
    const view = toView(request.view, 'BASIC');
    const pageArgs = pageArgsOf(caller, RolloutService.method.listRollouts, request);
    const page = await listRollouts(app, caller, { filter: toRolloutFilter(request), view, ...pageArgs });
    return { rollouts: page.items.map((rollout) => fromRollout(rollout, view)), nextPageToken: page.nextPageToken };
  },

  /** Labels and environments are replaced, metrics and timings merged by key (FM7). */
  async updateRollout(request, { app, caller }) {
    const { rolloutId, attempt } = request;
    const now = await app.store.updateRollout(caller.namespace, rolloutId, attempt, toRolloutChanges(request));
    return { rollout: fromRollout(now, 'FULL') };
  },

  /** Sets the phase; the status does not change (L5). */
  async setRolloutPhase({ rolloutId, attempt, phase, message }, { app, caller }) {
    const changes = { phase, ...(message === undefined ? {} : { statusMessage: message }) };
    const now = await app.store.updateRollout(caller.namespace, rolloutId, attempt, changes);
    return { rollout: fromRollout(now, 'FULL') };
  },

  async startRollout(request, { app, caller }) {
    return { rollout: fromRollout(await app.store.startRollout(caller, tokenOf(request), toSaid(request)), 'FULL') };
  },

  completeRollout: (request, call) =>
    end(request, call, 'COMPLETED', {
      attempt: request.attempt,
      result: toResult(request.result),
      expectedNextStepNumber: request.expectedNextStepNumber,
      report: toReport(request),
    }),

  failRollout: (request, call) =>
    end(request, call, 'FAILED', {
      attempt: request.attempt,
      result: toResult(request.result),
      report: toReport(request),
    }),

  /** Ends the rollout whichever worker holds it. */
  cancelRollout: (request, call) => end(request, call, 'CANCELLED', {}),

  /** Returns the rollout to the queue, or fails it after its last attempt; keeps the report of the attempt (Q1). */
  async releaseRollout(request, { app, caller }) {
    const said = { ...toSaid(request), refundAttempt: request.refundAttempt };
    const released = await app.store.releaseRollout(caller, tokenOf(request), said, toReport(request));
    return { rollout: fromRollout(released, 'FULL') };
  },

  async retryRollout(request, { app, caller }) {
    return { rollout: fromRollout(await app.store.retryRollout(caller, tokenOf(request), toSaid(request)), 'FULL') };
  },
};

const NO_REPORT: AttemptReport = Object.freeze({ validations: [], metrics: new Map(), timings: new Map() });

/** Ends the rollout and stores result and report in one transaction (L3, Q1). */
async function end(
  request: SaidRequest & { readonly rolloutId: string },
  { app, caller }: Call,
  status: SealStatus,
  { report = NO_REPORT, ...given }: Partial<RolloutEnd> & { readonly report?: AttemptReport },
) {
  const ended = await app.store.endRollout(caller, {
    id: request.rolloutId,
    status,
    said: toSaid(request),
    attempt: given.attempt,
    result: given.result,
    expectedNextStepNumber: given.expectedNextStepNumber,
    ...report,
  });
  return { rollout: fromRollout(ended, 'FULL') };
}
