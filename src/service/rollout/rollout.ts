import type { Rollout as WireRollout } from '../../../gen/es/anabranch/v1/rollout_pb.js';
import {
  type ReadRolloutsRequest,
  ReadRolloutsResponseSchema,
  RolloutService,
} from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { invalidField, rolloutNotFound } from '../../domain/errors.ts';
import type { SealStatus } from '../../domain/lifecycle.ts';
import type { Rollout } from '../../domain/rollout.ts';
import type { View } from '../../store/contract/request.ts';
import { type RolloutCursor, rolloutCursor } from '../../store/contract/rollout.ts';
import { readRollouts as readRolloutsOf } from '../../stream/rollouts/read.ts';
import type { RolloutsRead } from '../../stream/rollouts/read_group.ts';
import { type EncodedResponse, withSteps } from '../answer/encoded.ts';
import { pageByKey } from '../answer/page.ts';
import { toView } from '../convert/values.ts';
import type { Call, ServerStream, SomeMethods } from '../method.ts';
import { idempotencyKeyOf } from '../request/digest.ts';
import { pageArgsOf } from '../request/page_token.ts';
import type { Cursor } from '../request/query_tokens.ts';
import { fitClaims, toNewClaims, withoutInput } from './claim.ts';
import { fromRollout, rolloutBytes } from './messages.ts';
import { recordAnswer } from './record.ts';
import {
  type AttemptEnd,
  type MoveDetailsRequest,
  NO_END,
  requireRepeatable,
  toEnd,
  tokenOf,
  toMoveDetails,
  toNewRollouts,
  toReport,
  toRolloutChanges,
  toRolloutFilter,
} from './requests.ts';

export const rolloutMethods = {
  /** Creates the rollouts that do not exist yet, all or none (Q6). */
  async createRollouts(request, { app, caller }) {
    requireRepeatable(request);
    const key = idempotencyKeyOf(RolloutService.method.createRollouts, request);
    const rows = toNewRollouts(request.rollouts, app.ids.uuid);
    const claim = toNewClaims(request, app.ids);
    const { rollouts, claims } = await app.store.createRollouts(caller, request.stageId, rows, key, claim);
    return { rollouts: [...rollouts], claims: fitClaims(claims.map(withoutInput)) };
  },

  async getRollout({ rolloutId, view }, { app, caller }) {
    const found = await app.store.getRollout(caller.namespace, rolloutId);
    if (found === undefined) throw rolloutNotFound(rolloutId);
    return recordAnswer(found, toView(view, 'FULL'));
  },

  /** Lists rollouts by stage, group number and number. Without run, stage or group, lists the newest first. */
  async listRollouts(request, { app, caller }) {
    const view = toView(request.view, 'BASIC');
    const filter = toRolloutFilter(request);
    const hasOwner = filter.of !== undefined;
    const page = await pageByKey<Rollout, WireRollout, RolloutCursor>(
      pageArgsOf({ app, caller }, RolloutService.method.listRollouts, request),
      {
        view,
        fetch: (rows) => app.store.listRollouts(caller.namespace, filter, rows, view),
        keyOf: hasOwner ? rolloutCursor : ({ key }) => ({ key }),
        readKey: (cursor) => (hasOwner ? readPosition(cursor) : { key: BigInt(cursor[0]!) }),
        writeKey: (last) => ('key' in last ? [last.key] : [last.stage, last.groupNumber, last.number]).map(String),
        show: (row) => fromRollout(row, view),
        bytesOf: rolloutBytes,
      },
    );
    return { rollouts: page.items, nextPageToken: page.nextPageToken };
  },

  /** Replaces labels and environments; merges metrics and timings by key (FM7). */
  async updateRollout(request, { app, caller }) {
    const { rolloutId, attempt } = request;
    const now = await app.store.updateRollout(caller, rolloutId, attempt, toRolloutChanges(request));
    return { rollout: fromRollout(now, 'FULL') };
  },

  async startRollout(request, { app, caller }) {
    return {
      rollout: fromRollout(await app.store.startRollout(caller, tokenOf(request), toMoveDetails(request)), 'FULL'),
    };
  },

  completeRollout: (request, call) => end(request, call, 'COMPLETED', toEnd(request)),
  failRollout: (request, call) => end(request, call, 'FAILED', toEnd(request)),

  /** Cancels the rollout, even while a worker holds its lease. */
  cancelRollout: (request, call) => end(request, call, 'CANCELLED', NO_END),

  /** Returns the rollout to the queue, or fails it after its last attempt; keeps the report of the attempt (Q1). */
  async releaseRollout(request, { app, caller }) {
    const details = { ...toMoveDetails(request), refundAttempt: request.refundAttempt };
    const released = await app.store.releaseRollout(caller, tokenOf(request), details, toReport(request));
    return { rollout: fromRollout(released, 'FULL') };
  },

  async retryRollout(request, { app, caller }) {
    return {
      rollout: fromRollout(await app.store.retryRollout(caller, tokenOf(request), toMoveDetails(request)), 'FULL'),
    };
  },
} satisfies SomeMethods<typeof RolloutService>;

function readPosition([stage, groupNumber, number]: Cursor): RolloutCursor {
  return { stage: BigInt(stage!), groupNumber: BigInt(groupNumber!), number: BigInt(number!) };
}

/** Ends the rollout, and stores its result and report in the same transaction (L3, Q1). */
async function end(
  request: MoveDetailsRequest & { readonly rolloutId: string },
  { app, caller }: Call,
  status: SealStatus,
  given: AttemptEnd,
) {
  const details = toMoveDetails(request);
  const ended = await app.store.endRollout(caller, { id: request.rolloutId, status, details, ...given });
  return { rollout: fromRollout(ended, 'FULL') };
}

/** Reads the rollouts of a stage with their steps, group by group (Q6). */
export const readRollouts: ServerStream<typeof RolloutService.method.readRollouts, EncodedResponse> = {
  async *messages({ view: asked, ...request }, { app, caller, signal }) {
    const view = toView(asked, 'FULL');
    refuseWithGroup(request);
    const args = { ...request, view, signal };
    for await (const read of readRolloutsOf(app, caller, args)) yield fromRolloutsRead(read, view);
  },
};

/** Errors: INVALID_REQUEST. */
function refuseWithGroup({ groupId, completeGroupsOnly, follow }: Omit<ReadRolloutsRequest, 'view'>): void {
  if (groupId === '') return;
  if (completeGroupsOnly) throw invalidField('complete_groups_only', 'must be false when group_id is set');
  if (follow) throw invalidField('follow', 'must be false when group_id is set');
}

function fromRolloutsRead({ rollout, steps, blobs, ...marks }: RolloutsRead, view: View): EncodedResponse {
  const fields = { ...marks, blobs: [...blobs], rollout: rollout && fromRollout(rollout, view) };
  return withSteps(ReadRolloutsResponseSchema, fields, steps);
}
