import type { Caller } from '../../domain/caller.ts';
import type { Verb } from '../../domain/lifecycle.ts';
import type { Run, Stage } from '../../domain/run.ts';
import type { Heartbeat, RunMove, Said } from '../../store/contract/run.ts';
import type { App } from '../app.ts';

export interface MoveRunArgs extends Pick<RunMove, 'verb' | 'said' | 'keepTrajectoryOpen' | 'cancelRollouts'> {
  readonly runId: string;
}

/** L2, L5: a verb of a run. `cancelRollouts` marks its rollouts; the use case of that name cancels them. Errors: RUN_NOT_FOUND, ILLEGAL_TRANSITION, RESULT_CONFLICT, BRANCH_TOO_DEEP. */
export async function moveRun(app: App, caller: Caller, { runId, ...move }: MoveRunArgs): Promise<Run> {
  const ids = { trajectoryId: app.ids.uuid(), trajectoryUid: app.ids.uid() };
  return app.store.moveRun(caller, runId, { ...move, ...ids });
}

/** L2, L5: a verb of a stage, as of a run. Errors: STAGE_NOT_FOUND, ILLEGAL_TRANSITION, RESULT_CONFLICT. */
export async function moveStage(
  app: App,
  caller: Caller,
  args: { readonly stageId: string; readonly verb: Verb; readonly said: Said; readonly cancelRollouts?: boolean },
): Promise<Stage> {
  return app.store.moveStage(caller, args.stageId, args.verb, args.said, args.cancelRollouts);
}

/** Errors: RUN_NOT_FOUND. */
export async function heartbeatRun(app: App, caller: Caller, args: { readonly runId: string }): Promise<Heartbeat> {
  return app.store.heartbeatRun(caller.namespace, args.runId);
}
