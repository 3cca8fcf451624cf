import {
  type ListStatusChangesRequest,
  RunService,
  type StartRunRequest,
} from '../../../gen/es/anabranch/v1/run_service_pb.js';
import { StatusChangeSchema } from '../../../gen/es/anabranch/v1/status_pb.js';
import type { Caller } from '../../domain/caller.ts';
import type { Verb } from '../../domain/lifecycle.ts';
import type { RolloutsOf } from '../../store/contract/run.ts';
import type { StatusOwner } from '../../store/contract/status_change.ts';
import type { App } from '../../stream/app.ts';
import { sizerOf } from '../answer/message.ts';
import { pageOf } from '../answer/page.ts';
import { fromInstant, fromStatus } from '../convert/values.ts';
import type { Call, SomeMethods } from '../method.ts';
import { pageArgsOf } from '../request/page_token.ts';
import { fromRun, fromStatusChange } from './messages.ts';

const statusChangeBytes = sizerOf(StatusChangeSchema);

/** The verbs of a run, its heartbeat, and the history of statuses. */
export const runVerbs = {
  startRun: (request, call) => move('start', request, call),
  pauseRun: (request, call) => move('pause', request, call),
  resumeRun: (request, call) => move('resume', request, call),
  completeRun: (request, call) => move('complete', request, call),
  failRun: (request, call) => move('fail', request, call),

  async cancelRun(request, call) {
    const moved = await move('cancel', request, call);
    const { runId } = request;
    const cancelledRollouts = request.cancelRollouts ? await cancelRollouts(call.app, call.caller, { runId }) : 0n;
    return { ...moved, cancelledRollouts };
  },

  async reopenRun(request, call) {
    const { run } = await move('reopen', request, call);
    return { run, mainTrajectoryId: run.mainTrajectoryId };
  },

  async heartbeatRun({ runId }, { app, caller }) {
    const { status, statusMessage, heartbeatTime } = await app.store.heartbeatRun(caller.namespace, runId);
    return { status: fromStatus(status), statusMessage, heartbeatTime: fromInstant(heartbeatTime) };
  },

  /** Lists the changes of one status (L5). */
  async listStatusChanges(request, { app, caller }) {
    const { ascending } = request;
    const owner = ownerOf(request);
    const page = await pageOf(pageArgsOf({ app, caller }, RunService.method.listStatusChanges, request), {
      fetch: (rows) => app.store.listStatusChanges(caller.namespace, owner, rows, ascending),
      keyOf: ({ ordinal }) => ordinal,
      show: fromStatusChange,
      bytesOf: statusChangeBytes,
    });
    return { changes: page.items, nextPageToken: page.nextPageToken };
  },
} satisfies SomeMethods<typeof RunService>;

type MoveRequest = Omit<StartRunRequest, '$typeName' | '$unknown'> & {
  readonly resultJson?: string;
  readonly keepTrajectoryOpen?: boolean;
  readonly cancelRollouts?: boolean;
};

/** Changes the status and records the change (L2, L5). With `cancelRollouts`, marks the run for the cancellation. */
async function move(verb: Verb, request: MoveRequest, { app, caller }: Call) {
  const { runId, message, metadataJson, phase, resultJson = '' } = request;
  const moved = await app.store.moveRun(caller, runId, {
    verb,
    details: { message, metadataJson, phase, resultJson },
    keepTrajectoryOpen: request.keepTrajectoryOpen ?? false,
    cancelRollouts: request.cancelRollouts ?? false,
    trajectoryId: app.ids.uuid(),
    trajectoryUid: app.ids.uid(),
  });
  return { run: fromRun(moved, 'FULL') };
}

/** Returns the owner of the statuses. The rules of the proto require exactly one field. */
function ownerOf({
  runId,
  stageId,
  trajectoryId = '',
  rolloutId,
  environmentId,
}: ListStatusChangesRequest): StatusOwner {
  if (runId !== undefined) return { noun: 'RUN', id: runId };
  if (stageId !== undefined) return { noun: 'STAGE', id: stageId };
  if (rolloutId !== undefined) return { noun: 'ROLLOUT', id: rolloutId };
  if (environmentId !== undefined) return { noun: 'ENVIRONMENT', id: environmentId };
  return { noun: 'TRAJECTORY', id: trajectoryId };
}

/**
 * Cancels the rollouts of a marked run or stage in batches. If the call ends before the last batch, maintenance
 * continues, also after a restart. Returns how many rollouts any process cancelled since the mark. Reopening the run or
 * stage ends the cancellation early. Errors: RUN_NOT_FOUND, STAGE_NOT_FOUND, SERVER_DRAINING.
 */
export async function cancelRollouts(app: App, caller: Caller, of: RolloutsOf): Promise<bigint> {
  let cancelled = 0n;
  try {
    for (let more = true; more; ) {
      app.drain.throwIfBegun();
      const next = await app.store.cancelNextRollouts(caller.namespace, of);
      cancelled = next?.cancelled ?? cancelled;
      more = next?.more ?? false;
    }
    return cancelled;
  } catch (error) {
    app.maintenance.cancelSoon();
    throw error;
  }
}
