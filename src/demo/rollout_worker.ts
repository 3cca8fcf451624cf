/**
 * A worker of the demo's training, in a process of its own. It claims rollouts, plays them into the trajectories of the
 * claims, and completes them. One worker is killed. A worker holds nothing that the store does not, so another worker
 * can claim its rollout again.
 */
import { randomUUID } from 'node:crypto';
import { pid } from 'node:process';
import type { Claim } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { openWriter, reasonOf } from '../client/index.ts';
import { CartPole, type Gains } from './cartpole.ts';
import { HANGING, standStill } from './client_process.ts';
import { act, checkpointOf, isOver, NOISE } from './episode.ts';
import { type PlayOptions, present } from './events.ts';

export interface WorkerTask {
  readonly runId: string;
  readonly workerId: string;
  readonly leaseSeconds: number;
  /** Stops after this many turns of the first rollout, and waits to be killed. */
  readonly hangAfter: number | undefined;
  /** The rollout whose worker was killed. */
  readonly killedRolloutId: string;
}

export async function runRolloutWorker(task: WorkerTask, options: PlayOptions): Promise<void> {
  const { client, onEvent, signal } = options;
  const { runId, workerId } = task;
  const leaseDuration = { seconds: BigInt(task.leaseSeconds) };
  const environmentId = randomUUID();
  const place = { runId, environmentId };
  const made = { ...place, type: 'cartpole', externalId: workerId, status: Status.RUNNING };
  await client.rollouts.upsertEnvironment(made, { signal });
  onEvent({ event: 'worker', name: workerId, pid }, { lines: [`process ${pid} claims rollouts`] });
  // Waits for rollouts that others may release, and ends when no rollout can follow.
  for (let isDrained = false; !isDrained; ) {
    const request = { runId, workerId, leaseDuration, wait: { seconds: WAIT_SECONDS } };
    const { claims, drained } = await client.rollouts.claimRollouts(request, { signal });
    for (const claim of claims) {
      await play(claim, { ...task, environmentId }, options).catch((error: unknown) => {
        if (!LOST.has(reasonOf(error) ?? '')) throw error;
      });
    }
    isDrained = drained;
  }
  await client.rollouts.upsertEnvironment({ ...place, status: Status.COMPLETED }, { signal });
}

const WAIT_SECONDS = 30n;

/** Errors of a worker whose lease has ended: the rollout, or its trajectory, belongs to another worker. */
const LOST = new Set(['LEASE_LOST', 'WRITER_FENCED', 'TRAJECTORY_SEALED']);

/** Each turn is durable before the next one is played. One call completes the rollout and seals its trajectory. */
async function play(
  claim: Claim,
  worker: WorkerTask & { readonly environmentId: string },
  { client, onEvent, signal }: PlayOptions,
): Promise<void> {
  const { workerId: name, environmentId, hangAfter, killedRolloutId } = worker;
  const { id: rolloutId, attempt } = present(claim.rollout);
  const claimed = { rolloutId, attempt };
  if (rolloutId === killedRolloutId) {
    const lines = [`claimed that rollout again, as attempt ${attempt}`];
    onEvent({ event: 'claimed_again', name, ...claimed }, { lines });
  }
  const updateMask = { paths: ['environment_ids'] };
  await client.rollouts.updateRollout({ ...claimed, updateMask, environmentIds: [environmentId] }, { signal });
  await client.rollouts.startRollout(claimed, { signal });
  const { seed } = JSON.parse(claim.task?.inputJson ?? '') as { seed: number };
  const { gains } = JSON.parse(claim.rollout?.inputJson ?? '') as { gains: Gains };
  const { id: trajectoryId, uid } = present(claim.trajectory);
  const maxTurns = Number(claim.maxTurns);
  const began = performance.now();
  const cart = CartPole.reset(seed, NOISE);
  // Every step is awaited, so nothing must be flushed, however this ends.
  const done = new AbortController();
  using _ = { [Symbol.dispose]: () => done.abort() };
  const writer = await openWriter(client, { trajectoryId, uid, signal: AbortSignal.any([signal, done.signal]) });
  await writer.append(checkpointOf(cart));
  while (!isOver(cart) && cart.state.steps < maxTurns) {
    // The root has the whole state. Turns have none, as with most trainers.
    await writer.append({ ...act(cart, gains), states: undefined });
    if (cart.state.steps !== hangAfter) continue;
    onEvent({ event: HANGING, name, turns: hangAfter, rolloutId, environmentId });
    standStill();
  }
  const turns = cart.state.steps;
  const success = !cart.terminated;
  await client.rollouts.completeRollout(
    {
      ...claimed,
      message: success ? `balanced for ${turns} turns` : `fell at turn ${turns}`,
      expectedNextStepNumber: writer.nextStepNumber,
      result: { taskCompleted: success },
      validations: Object.keys(claim.task?.validators ?? {}).map((name) => ({
        name,
        success,
        actualResult: `${turns} turns`,
      })),
      metrics: { steps_per_second: (turns / (performance.now() - began)) * 1000 },
    },
    { signal },
  );
}
