import {
  ClaimSchema,
  LeaseStateSchema,
  RolloutService,
  type Claim as WireClaim,
  type LeaseState as WireLease,
} from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { claimRollouts } from '../../app/rollout/claim.ts';
import { type ClaimExtent, fitClaims } from '../../app/rollout/fit.ts';
import type { Claim, LeaseState } from '../../store/contract/rollout.ts';
import { messageOf } from '../answer/message.ts';
import { fromMillis, toMillis } from '../convert/duration.ts';
import { fromStatus } from '../convert/values.ts';
import type { Methods } from '../method.ts';
import { idempotencyKeyOf } from '../request/digest.ts';
import { taskMessage } from '../task/task.ts';
import { validatorMessage } from '../task/validator.ts';
import { fromTrajectory } from '../trajectory/messages.ts';
import { fromBareRollout, fromRollout } from './messages.ts';
import { toClaimArgs, tokenOf } from './requests.ts';

/** The queue, as its workers see it. */
export const claimMethods: Methods<typeof RolloutService, 'claimRollouts' | 'heartbeatRollouts'> = {
  async claimRollouts(request, { app, caller, signal }) {
    const key = idempotencyKeyOf(RolloutService.method.claimRollouts, request);
    const { claims, drained } = await claimRollouts(app, caller, { ...toClaimArgs(request), key, signal });
    const extents = fitClaims(claims);
    return { claims: claims.map((claim, i) => claimMessage(claim, extents[i] ?? 'INPUT')), drained };
  },

  async heartbeatRollouts({ leases, leaseDuration }, { app, caller }) {
    const tokens = leases.map(tokenOf);
    const states = await app.store.heartbeatRollouts(caller.namespace, tokens, toMillis(leaseDuration));
    return { leases: states.map(leaseMessage) };
  },
};

function claimMessage({ rollout, task, validators, trajectory, maxTurns }: Claim, extent: ClaimExtent): WireClaim {
  const view = extent === 'WHOLE' ? 'FULL' : 'BASIC';
  const { inputJson } = rollout;
  const isBare = extent === 'BARE';
  return messageOf(ClaimSchema, {
    rollout: isBare ? fromBareRollout(rollout) : { ...fromRollout(rollout, view), inputJson },
    task: task === undefined || isBare ? undefined : { ...taskMessage(task, view), inputJson: task.inputJson },
    trajectory: fromTrajectory(trajectory, view),
    validators: extent === 'WHOLE' ? validators.map(validatorMessage) : [],
    maxTurns,
    truncated: extent !== 'WHOLE',
  });
}

function leaseMessage({ id, attempt, kept, status, runStatus, remainingMs }: LeaseState): WireLease {
  return messageOf(LeaseStateSchema, {
    rolloutId: id,
    attempt,
    kept,
    status: status && fromStatus(status),
    runStatus: runStatus && fromStatus(runStatus),
    remaining: remainingMs === undefined ? undefined : fromMillis(Math.max(0, remainingMs)),
  });
}
