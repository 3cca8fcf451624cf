import { randomUUID } from 'node:crypto';
import { OnSuccess } from '../../../gen/es/anabranch/v1/rollout_pb.js';
import { StageKind } from '../../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import type { WireClient } from '../story.ts';
import { appendAll, LABELS } from './scene.ts';

/** A task in the catalogue, with two validators: `state` decides, `look` is advisory. */
export interface CatalogueScene extends WireClient {
  readonly taskId: string;
  readonly stateId: string;
  readonly lookId: string;
}

/** A run with environments: PENDING; RUNNING; COMPLETED. */
export interface EnvironmentScene extends WireClient {
  readonly runId: string;
  readonly newEnvironmentId: string;
  readonly environmentId: string;
  readonly endedEnvironmentId: string;
}

/** A task, and a run with rollouts that are not over. */
export interface LiveScene extends CatalogueScene {
  /** RUNNING; its main trajectory has steps 0 to 3. */
  readonly runId: string;
  readonly mainId: string;
  /** TRAIN_STEP 1 of the run: RUNNING. */
  readonly stageId: string;
  /** Group 1: `pending`, `held` and `running`. */
  readonly liveGroupId: string;
  /** PENDING, labelled `which: pending`. */
  readonly pendingId: string;
  /** INITIALIZING, attempt 1; RUNNING, attempt 1. */
  readonly heldId: string;
  readonly runningId: string;
  readonly runningTrajectoryId: string;
}

/** The scene before an RPC of RolloutService is called; a new one for every set of calls. */
export interface RolloutScene extends LiveScene, EnvironmentScene {
  /** Group 0: `done` and `failed`. */
  readonly endedGroupId: string;
  /** COMPLETED, with three steps of reward 1, a result, a validation and the environment that stays RUNNING. */
  readonly doneId: string;
  readonly doneTrajectoryId: string;
  /** FAILED at its first attempt. */
  readonly failedId: string;
}

export async function makeRolloutScene(client: WireClient): Promise<RolloutScene> {
  const place = await makePlace(client);
  const environments = await makeEnvironments(client, place.runId);
  const ended = await makeEnded(client, place, environments);
  return { ...place, ...environments, ...ended, ...(await makeLive(client, place)) };
}

export async function makeLiveScene(client: WireClient): Promise<LiveScene> {
  const place = await makePlace(client);
  return { ...place, ...(await makeLive(client, place)) };
}

export async function makeEnvironmentScene(client: WireClient): Promise<EnvironmentScene> {
  const { run } = await client.runs.createRun({ initialStatus: Status.RUNNING });
  return { ...client, runId: run!.id, ...(await makeEnvironments(client, run!.id)) };
}

export async function makeCatalogueScene(client: WireClient): Promise<CatalogueScene> {
  return { ...client, ...(await makeCatalogue(client)) };
}

/** The task, and the stage of a run: where rollouts are created. */
async function makePlace(client: WireClient) {
  const { runs } = client;
  const { run } = await runs.createRun({
    initialStatus: Status.RUNNING,
    labels: { model: 'm1' },
    mainTrajectory: { root: { reward: 0 } },
  });
  const [runId, mainId] = [run!.id, run!.mainTrajectoryId];
  await appendAll(client, mainId, threeSteps(1n));
  const place = { runId, kind: StageKind.TRAIN_STEP, number: 1n, initialStatus: Status.RUNNING };
  const { stage } = await runs.getOrCreateStage(place);
  return { ...(await makeCatalogueScene(client)), runId, mainId, stageId: stage!.id };
}

type Place = Awaited<ReturnType<typeof makePlace>>;

async function makeEnded(client: WireClient, place: Place, { environmentId }: { readonly environmentId: string }) {
  const { rollouts } = client;
  const [done, failed] = await makeRollouts(place, 0n, ['done', 'failed']);
  const claim = claimer(client, place.stageId);
  const doneTrajectoryId = await claim('done');
  await appendAll(client, doneTrajectoryId, threeSteps(0n));
  await rollouts.updateRollout({
    rolloutId: done!.rolloutId,
    updateMask: { paths: ['environment_ids'] },
    environmentIds: [environmentId],
  });
  await rollouts.completeRollout({
    rolloutId: done!.rolloutId,
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
  await rollouts.failRollout({ rolloutId: failed!.rolloutId, attempt: 1, message: 'lost' });
  const ids = { doneId: done!.rolloutId, failedId: failed!.rolloutId, endedGroupId: done!.groupId };
  return { ...ids, doneTrajectoryId };
}

async function makeLive(client: WireClient, place: Place) {
  const [pending, held, running] = await makeRollouts(place, 1n, ['pending', 'held', 'running']);
  const claim = claimer(client, place.stageId);
  await claim('held');
  const runningTrajectoryId = await claim('running');
  await client.rollouts.startRollout({ rolloutId: running!.rolloutId, attempt: 1 });
  return {
    liveGroupId: pending!.groupId,
    pendingId: pending!.rolloutId,
    heldId: held!.rolloutId,
    runningId: running!.rolloutId,
    runningTrajectoryId,
  };
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
  const values = { category: taskId, difficulty: 'easy', tags: { values: ['a', 'b'] }, maxTurns: 7n, inputJson: '{}' };
  const validators = { state: { query: 'what is', expectedResult: 'that' }, look: { advisory: true } };
  await rollouts.upsertTasks({ tasks: [{ id: taskId, ...values, validators }] });
  const { task } = await rollouts.getTask({ taskId });
  return { taskId, stateId: task!.validators.state!.id, lookId: task!.validators.look!.id };
}

async function makeRollouts({ rollouts, stageId, taskId }: Place, groupNumber: bigint, names: readonly string[]) {
  const made = await rollouts.createRollouts({
    stageId,
    rollouts: names.map((which, number) => ({
      groupNumber,
      number: BigInt(number),
      taskId,
      labels: { which, ...LABELS },
      inputJson: '{"seed":1}',
      modelUri: 's3://models/0',
      onSuccess: OnSuccess.CONTINUE,
    })),
  });
  return made.rollouts;
}

async function makeEnvironments({ rollouts }: WireClient, runId: string) {
  const make = async (status: Status) => {
    const environmentId = randomUUID();
    await rollouts.upsertEnvironment({ runId, environmentId, status, type: 'android', labels: { values: LABELS } });
    return environmentId;
  };
  const endedEnvironmentId = await make(Status.RUNNING);
  const end = { runId, environmentId: endedEnvironmentId, status: Status.COMPLETED, message: 'done' };
  await rollouts.upsertEnvironment(end);
  return {
    newEnvironmentId: await make(Status.PENDING),
    environmentId: await make(Status.RUNNING),
    endedEnvironmentId,
  };
}
