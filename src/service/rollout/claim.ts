import {
  ClaimSchema,
  type CreateRolloutsRequest,
  LeaseStateSchema,
  RolloutService,
  type Claim as WireClaim,
  type LeaseState as WireLease,
} from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { ANSWER_BYTES } from '../../domain/limits.ts';
import type { Claim, LeaseState, NewClaims } from '../../store/contract/rollout.ts';
import type { Ids } from '../../stream/app.ts';
import { claimRollouts } from '../../stream/rollouts/claim.ts';
import { countFitting, messageOf, sizerOf, totalBytes } from '../answer/message.ts';
import { fromMillis, fromStatus, toMap, toMillis } from '../convert/values.ts';
import type { SomeMethods } from '../method.ts';
import { idempotencyKeyOf } from '../request/digest.ts';
import { taskMessage } from '../task/task.ts';
import { fromTrajectory } from '../trajectory/messages.ts';
import { fromBareRollout, fromRollout } from './messages.ts';
import { tokenOf } from './requests.ts';

const DEFAULT_LEASE_MS = 60_000;
const claimBytes = sizerOf(ClaimSchema);

/** Methods of workers: claims and heartbeats. */
export const claimMethods = {
  async claimRollouts(request, { app, caller, signal }) {
    const { runId, stageId, taskIds, rolloutIds, minPriority, maxRollouts, workerId } = request;
    const { claims, drained } = await claimRollouts(app, {
      request: {
        caller,
        runId: runId || undefined,
        stageId: stageId || undefined,
        taskIds: [...new Set(taskIds)].sort(),
        rolloutIds: [...new Set(rolloutIds)].sort(),
        labels: toMap(request.labels),
        minPriority,
        workerId,
        leaseMs: toMillis(request.leaseDuration) ?? DEFAULT_LEASE_MS,
        countFitting: countFittingClaims,
        key: idempotencyKeyOf(RolloutService.method.claimRollouts, request),
      },
      maxRollouts: Math.max(1, maxRollouts || rolloutIds.length),
      waitMs: toMillis(request.wait) ?? 0,
      signal,
    });
    return { claims: fitClaims(claims), drained };
  },

  async heartbeatRollouts({ leases, leaseDuration }, { app, caller }) {
    const tokens = leases.map(tokenOf);
    const states = await app.store.heartbeatRollouts(caller, tokens, toMillis(leaseDuration));
    return { leases: states.map(leaseMessage) };
  },
} satisfies SomeMethods<typeof RolloutService>;

/** Returns how the rollouts of a creation are claimed; undefined if they are not. */
export function toNewClaims({ claim, rollouts }: CreateRolloutsRequest, { uuid, uid }: Ids): NewClaims | undefined {
  if (claim === undefined) return undefined;
  return {
    workerId: claim.workerId,
    leaseMs: toMillis(claim.leaseDuration) ?? DEFAULT_LEASE_MS,
    trajectories: rollouts.map(() => ({ id: uuid(), uid: uid() })),
    countFitting: (claims) => countFittingClaims(claims.map(withoutInput)),
  };
}

/** The caller that creates rollouts knows their input. */
export function withoutInput(claim: Claim): Claim {
  return { ...claim, rollout: { ...claim.rollout, inputJson: '' } };
}

/** WHOLE: all fields. INPUT: no validators and no JSON but `input_json`. BARE: ids, numbers and times. */
type Extent = 'WHOLE' | 'INPUT' | 'BARE';

/** Returns how many claims, from the first on, fit into one response with all fields (Q2). At least one. */
function countFittingClaims(claims: readonly Claim[]): number {
  const bytesOf = (claim: Claim) => claimBytes(claimMessage(claim, 'WHOLE'));
  return Math.max(1, countFitting(claims, bytesOf, ANSWER_BYTES));
}

/**
 * Returns the claims with all fields if they fit. They may not fit if rollouts and tasks have grown since the claims
 * were granted. Then the first claims have all fields, and the others at least their
 * `input_json` if it fits (RD3).
 */
export function fitClaims(claims: readonly Claim[]): WireClaim[] {
  const inExtent = (extent: Extent) => claims.map((claim) => claimMessage(claim, extent));
  const whole = inExtent('WHOLE');
  if (totalBytes(whole, claimBytes) <= ANSWER_BYTES) return whole;
  const input = inExtent('INPUT');
  const least = totalBytes(input, claimBytes) <= ANSWER_BYTES ? input : inExtent('BARE');
  let left = ANSWER_BYTES - totalBytes(least, claimBytes);
  return least.map((message, i) => {
    const more = claimBytes(whole[i]!) - claimBytes(message);
    if (more > left) return message;
    left -= more;
    return whole[i]!;
  });
}

function claimMessage({ rollout, task, trajectory, maxTurns }: Claim, extent: Extent): WireClaim {
  const view = extent === 'WHOLE' ? 'FULL' : 'BASIC';
  const { inputJson } = rollout;
  const isBare = extent === 'BARE';
  return messageOf(ClaimSchema, {
    rollout: isBare ? fromBareRollout(rollout) : { ...fromRollout(rollout, view), inputJson },
    task: task === undefined || isBare ? undefined : { ...taskMessage(task, view), inputJson: task.inputJson },
    trajectory: fromTrajectory(trajectory, view),
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
