import { create } from '@bufbuild/protobuf';
import type { ServiceImpl } from '@connectrpc/connect';
import {
  ClaimRolloutsResponseSchema,
  ClaimSchema,
  HeartbeatRolloutsResponseSchema,
  LeaseStateSchema,
  RolloutService,
  type Claim as WireClaim,
  type LeaseState as WireLease,
} from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { claimRollouts } from '../app/rollout/claim.ts';
import { type ClaimExtent, fitClaims } from '../app/rollout/fit.ts';
import { fromMillis, toMillis } from '../service/convert/duration.ts';
import { fromStatus } from '../service/convert/values.ts';
import type { Call } from '../service/method.ts';
import { idempotencyKeyOf } from '../service/request/digest.ts';
import { fromBareRollout, fromRollout } from '../service/rollout/messages.ts';
import { toClaimArgs, tokenOf } from '../service/rollout/requests.ts';
import { taskMessage } from '../service/task/task.ts';
import { validatorMessage } from '../service/task/validator.ts';
import { fromTrajectory } from '../service/trajectory/messages.ts';
import { unary, type Wire } from './call.ts';

const rpc = RolloutService.method;
type Claim = Awaited<ReturnType<typeof claimRollouts>>['claims'][number];
type LeaseState = Awaited<ReturnType<Call['app']['store']['heartbeatRollouts']>>[number];

/** The queue, as its workers see it. */
export function claimMethods(
  wire: Wire,
): Pick<ServiceImpl<typeof RolloutService>, 'claimRollouts' | 'heartbeatRollouts'> {
  return {
    claimRollouts: unary(wire, rpc.claimRollouts, 'write', async (request, { app, caller, signal }) => {
      const key = idempotencyKeyOf(rpc.claimRollouts, request);
      const { claims, drained } = await claimRollouts(app, caller, { ...toClaimArgs(request), key, signal });
      const extents = fitClaims(claims);
      return create(ClaimRolloutsResponseSchema, {
        claims: claims.map((claim, i) => fromClaim(claim, extents[i] ?? 'INPUT')),
        drained,
      });
    }),

    heartbeatRollouts: unary(
      wire,
      rpc.heartbeatRollouts,
      'write',
      async ({ leases, leaseDuration }, { app, caller }) => {
        const tokens = leases.map(tokenOf);
        const states = await app.store.heartbeatRollouts(caller.namespace, tokens, toMillis(leaseDuration));
        return create(HeartbeatRolloutsResponseSchema, { leases: states.map(fromLeaseState) });
      },
    ),
  };
}

function fromClaim({ rollout, task, validators, trajectory, maxTurns }: Claim, extent: ClaimExtent): WireClaim {
  const wire = create(ClaimSchema);
  const view = extent === 'WHOLE' ? 'FULL' : 'BASIC';
  const { inputJson } = rollout;
  wire.rollout = extent === 'BARE' ? fromBareRollout(rollout) : { ...fromRollout(rollout, view), inputJson };
  if (task !== undefined && extent !== 'BARE') wire.task = { ...taskMessage(task, view), inputJson: task.inputJson };
  wire.trajectory = fromTrajectory(trajectory, view);
  if (extent === 'WHOLE') wire.validators = validators.map(validatorMessage);
  if (maxTurns !== undefined) wire.maxTurns = maxTurns;
  wire.truncated = extent !== 'WHOLE';
  return wire;
}

function fromLeaseState({ id, attempt, kept, status, runStatus, remainingMs }: LeaseState): WireLease {
  const wire = create(LeaseStateSchema, { rolloutId: id, attempt, kept });
  if (status !== undefined) wire.status = fromStatus(status);
  if (runStatus !== undefined) wire.runStatus = fromStatus(runStatus);
  if (remainingMs !== undefined) wire.remaining = fromMillis(Math.max(0, remainingMs));
  return wire;
}
