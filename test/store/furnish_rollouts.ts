import type { Run } from '../../src/domain/run.ts';
import { wordStep } from '../support/steps.ts';
import { NO_RESULT, newEnvironment, RolloutScene, tokenOf } from './rollout_scene.ts';
import type { RunScene } from './run_scene.ts';
import { SILENT } from './run_scene.ts';

/** Number of trajectories that `furnishRollouts` creates. */
export const FURNISHED_TRAJECTORIES = 3n;

/**
 * Creates rows in every table of rollouts: none is live at the end, one is PENDING. Tasks and validators are created
 * once per namespace.
 */
export async function furnishRollouts(scene: RunScene, run: Run): Promise<void> {
  const here = new RolloutScene(scene.store, scene.namespace);
  const taskId = await here.task('furnished');
  await here.validator(taskId, 'state');
  const stage = await here.stage(run, { kind: 'EVAL', status: 'RUNNING', number: 77n });
  const made = newEnvironment(run.id, { type: 'android' });
  await here.store.upsertEnvironment(here.caller, made);
  const started = { ...made, status: 'RUNNING', externalId: 'gbox' } as const;
  const { environment } = await here.store.upsertEnvironment(here.caller, started);
  await here.queue(stage, 3, { taskId });
  const [first, second] = await here.claims({ stageId: stage.id, count: 2 });
  if (first === undefined || second === undefined) throw new Error('nothing was claimed');
  await here.append(first.trajectory, [wordStep(0n, 'root'), wordStep(1n, 'turn')]);
  const details = {
    query: '',
    expectedResult: '',
    actualResult: '',
    executionMs: 3,
    errorMessage: '',
    detailsJson: '',
  };
  const validations = ['state', 'free'].map((name) => ({ name, success: true, advisory: false, ...details }));
  await here.complete(first, { validations, result: { ...NO_RESULT, reward: 1 }, metrics: new Map([['tokens', 9]]) });
  const judgement = { success: false, reason: 'seen', actor: 'Ann' };
  await here.store.overrideValidation(here.caller, first.rollout.id, undefined, judgement);
  const environmentIds = [environment.id];
  await here.store.updateRollout(here.caller, first.rollout.id, undefined, { environmentIds });
  await here.fail(second);
  await here.retry(tokenOf(second));
  const [again] = await here.claims({ stageId: stage.id });
  if (again === undefined) throw new Error('the retried rollout was not claimed');
  await here.cancel(again.rollout.id);
  const cancelled = await here.stage(run, { kind: 'EVAL', status: 'RUNNING', number: 78n });
  await here.store.moveStage(here.caller, cancelled.id, 'cancel', SILENT, true);
}
