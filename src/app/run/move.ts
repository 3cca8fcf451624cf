import type { Caller } from '../../domain/caller.ts';
import type { Run } from '../../domain/run.ts';
import type { Heartbeat, RunMove } from '../../store/contract/run.ts';
import type { App } from '../app.ts';

export interface MoveRunArgs extends Pick<RunMove, 'verb' | 'said' | 'keepTrajectoryOpen' | 'cancelRollouts'> {
  readonly runId: string;
}

/** L2, L5: a verb of a run. `cancelRollouts` marks its rollouts; the use case of that name cancels them. Errors: RUN_NOT_FOUND, ILLEGAL_TRANSITION, RESULT_CONFLICT, BRANCH_TOO_DEEP. */
export async function moveRun(app: App, caller: Caller, { runId, ...move }: MoveRunArgs): Promise<Run> {
  const ids = { trajectoryId: app.ids.uuid(), trajectoryUid: app.ids.uid() };
  return app.store.moveRun(caller, runId, { ...move, ...ids });
}

/** Errors: RUN_NOT_FOUND. */
export async function heartbeatRun(app: App, caller: Caller, args: { readonly runId: string }): Promise<Heartbeat> {
  return app.store.heartbeatRun(caller.namespace, args.runId);
}
