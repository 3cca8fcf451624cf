import { create, type MessageInitShape } from '@bufbuild/protobuf';
import {
  type GetStorageUsageRequest,
  type GetStorageUsageResponse,
  GetStorageUsageResponseSchema,
  type UsedBytesSchema,
} from '../../../gen/es/anabranch/v1/state_service_pb.js';
import type { UsedBytes } from '../../domain/usage.ts';
import type { UsageStore } from '../../store/contract/retention.ts';
import { findRun, findTrajectory, requireStillThere } from '../../stream/find.ts';
import type { Call } from '../method.ts';

/** S12. Errors: TRAJECTORY_NOT_FOUND, RUN_NOT_FOUND, SERVER_DRAINING. */
export async function* getStorageUsage(
  { trajectoryId, runId }: GetStorageUsageRequest,
  { app, caller }: Call,
): AsyncGenerator<GetStorageUsageResponse, void, undefined> {
  const trajectory = trajectoryId === '' ? undefined : await findTrajectory(app, caller, trajectoryId);
  const run = runId === '' ? undefined : await findRun(app, caller, runId);
  const measuring = app.store.measureUsage(caller.namespace, scopeOf(trajectory, run));
  let totalSteps = 0n;
  for (;;) {
    const { value, done } = await measuring.next();
    if (done === true) {
      if (trajectory !== undefined) await requireStillThere(app, caller, trajectory);
      if (run !== undefined) await findRun(app, caller, run.id);
      const usage = { steps: fromUsed(value.steps), states: fromUsed(value.states) };
      yield create(GetStorageUsageResponseSchema, { doneSteps: totalSteps, totalSteps, usage });
      return;
    }
    app.drain.throwIfBegun();
    totalSteps = value.total;
    yield create(GetStorageUsageResponseSchema, { doneSteps: value.done, totalSteps });
  }
}

function scopeOf(
  trajectory: Awaited<ReturnType<typeof findTrajectory>> | undefined,
  run: Awaited<ReturnType<typeof findRun>> | undefined,
): Parameters<UsageStore['measureUsage']>[1] {
  if (trajectory !== undefined) return { trajectory: trajectory.ref };
  return run === undefined ? 'namespace' : { run: run.key };
}

function fromUsed({ logical, stored, shared }: UsedBytes): MessageInitShape<typeof UsedBytesSchema> {
  return { logicalBytes: logical, storedBytes: stored, sharedBytes: shared, uniqueBytes: stored - shared };
}
