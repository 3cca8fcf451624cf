import { randomUUID } from 'node:crypto';
import { OnSuccess } from '../../../gen/es/anabranch/v1/rollout_pb.js';
import { StageKind } from '../../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import type { WireClient } from '../story.ts';
import { appendAll, LABELS } from './scene.ts';

/** The scene before an RPC of RolloutService is called; a new one for every set of calls. */
export interface RolloutScene extends WireClient {
  /** RUNNING; its main trajectory has steps 0 to 3. */
  readonly runId: string;
  readonly mainId: string;
  /** TRAIN_STEP 1 of the run: RUNNING. */
  readonly stageId: string;
  /** In the catalogue, with two validators: `state` decides, `look` is advisory. */
  readonly taskId: string;
  readonly stateId: string;
  readonly lookId: string;
  /** Group 0: `done` and `failed`. */
  readonly endedGroupId: string;
  /** Group 1: `pending`, `held` and `running`. */
  readonly liveGroupId: string;
  /** COMPLETED, with three steps of reward 1, a result, a validation and the environment that stays RUNNING. */
  readonly doneId: string;
  readonly doneTrajectoryId: string;
  /** FAILED at its first attempt. */
  readonly failedId: string;
  /** PENDING, labelled `which: pending`. */
  readonly pendingId: string;
  /** INITIALIZING, attempt 1; RUNNING, attempt 1. */
  readonly heldId: string;
  readonly runningId: string;
  readonly runningTrajectoryId: string;
  /** PENDING; RUNNING; COMPLETED. */
  readonly newEnvironmentId: string;
  readonly environmentId: string;
  readonly endedEnvironmentId: string;
}

export async function makeRolloutScene(client: WireClient): Promise<RolloutScene> {
  const { runs, rollouts } = client;
  const { run } = await runs.createRun({
    initialStatus: Status.RUNNING,
    labels: { model: 'm1' },
    mainTrajectory: { root: { reward: 0 } },
  });
  const [runId, mainId] = [run!.id, run!.mainTrajectoryId];
  await appendAll(client, mainId, threeSteps(1n));
  const place = { runId, kind: StageKind.TRAIN_STEP, number: 1n, initialStatus: Status.RUNNING };
  const stageId = (await runs.getOrCreateStage(place)).stage!.id;
  const [catalogue, environments] = await Promise.all([makeCatalogue(client), makeEnvironments(client, runId)]);
  const ids = await makeRollouts(client, stageId, catalogue.taskId);
  const claim = claimer(client, stageId);
  const done = await claim('done');
  await appendAll(client, done, threeSteps(0n));
  await rollouts.updateRollout({
    rolloutId: ids.doneId,
    updateMask: { paths: ['environment_ids'] },
    environmentIds: [environments.environmentId],
  });
  await rollouts.completeRollout({
    rolloutId: ids.doneId,
    attempt: 1,
    message: 'done',
    result: { taskCompleted: true, summaryJson: '{"n":1}' },
    validations: [
      { name: 'state', success: true, detailsJson: '{"m":1}' },
      { name: 'free', success: false, advisory: true },
    ],
    metrics: { tokens: 100 },
  });
  await claim('failed');
  await rollouts.failRollout({ rolloutId: ids.failedId, attempt: 1, message: 'lost' });
  await claim('held');
  const runningTrajectoryId = await claim('running');
  await rollouts.startRollout({ rolloutId: ids.runningId, attempt: 1 });
  const trajectoryIds = { doneTrajectoryId: done, runningTrajectoryId };
  return { ...client, runId, mainId, stageId, ...catalogue, ...environments, ...ids, ...trajectoryIds };
}

function threeSteps(first: bigint) {
  return [first, first + 1n, first + 2n].map((stepNumber) => ({ stepNumber, reward: 1 }));
}

/** Claims the rollout with that label. Returns the trajectory of its attempt. */
export function claimer({ rollouts }: WireClient, stageId: string) {
  return async (which: string): Promise<string> => {
    // Longer than any test takes on a slow machine: nothing extends these leases.
    const leaseDuration = { seconds: 3600n };
    const { claims } = await rollouts.claimRollouts({ stageId, labels: { which }, workerId: 'worker', leaseDuration });
    if (claims.length !== 1) throw new Error(`rollout ${which} is not to be had`);
    return claims[0]!.trajectory!.id;
  };
}

async function makeCatalogue({ rollouts }: WireClient) {
  const taskId = `rpcs/${randomUUID()}`;
  await rollouts.upsertTasks({
    tasks: [
      { id: taskId, category: taskId, difficulty: 'easy', tags: { values: ['a', 'b'] }, maxTurns: 7n, inputJson: '{}' },
    ],
  });
  const upserted = await rollouts.upsertValidators({
    validators: [
      { taskId, type: 'state', query: 'what is', expectedResult: 'that' },
      { taskId, type: 'look', advisory: true },
    ],
  });
  const [stateId, lookId] = upserted.validatorIds;
  return { taskId, stateId: stateId!, lookId: lookId! };
}

async function makeRollouts({ rollouts }: WireClient, stageId: string, taskId: string) {
  const made = await rollouts.createRollouts({
    stageId,
    rollouts: [
      ['done', 0n, 0n] as const,
      ['failed', 0n, 1n] as const,
      ['pending', 1n, 0n] as const,
      ['held', 1n, 1n] as const,
      ['running', 1n, 2n] as const,
    ].map(([which, groupNumber, number]) => ({
      groupNumber,
      number,
      taskId,
      labels: { which, ...LABELS },
      inputJson: '{"seed":1}',
      modelUri: 's3://models/0',
      onSuccess: OnSuccess.CONTINUE,
    })),
  });
  const [done, failed, pending, held, running] = made.rollouts;
  return {
    doneId: done!.rolloutId,
    failedId: failed!.rolloutId,
    pendingId: pending!.rolloutId,
    heldId: held!.rolloutId,
    runningId: running!.rolloutId,
    endedGroupId: done!.groupId,
    liveGroupId: pending!.groupId,
  };
}

async function makeEnvironments({ rollouts }: WireClient, runId: string) {
  const make = async (initialStatus: Status) =>
    (await rollouts.createEnvironment({ runId, initialStatus, type: 'android', labels: LABELS })).environment!.id;
  const endedEnvironmentId = await make(Status.RUNNING);
  await rollouts.completeEnvironment({ environmentId: endedEnvironmentId, message: 'done' });
  return {
    newEnvironmentId: await make(Status.PENDING),
    environmentId: await make(Status.RUNNING),
    endedEnvironmentId,
  };
}
