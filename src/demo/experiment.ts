/**
 * The demo. It streams one CartPole episode into a trajectory and branches it at step 200 into four variants, which run
 * concurrently. One variant is killed and resumed, one is replayed from a checkpoint, and all are compared with the
 * main line. The demo is a client program that only needs a server.
 */
import type { Trajectory } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { type AnabranchClient, openWriter } from '../client/index.ts';
import { CartPole } from './cartpole.ts';
import { checkpointOf, playToEnd, restoreAt } from './episode.ts';
import type { DemoEvent, DemoResult, DemoTrajectory } from './events.ts';
import { countIdenticalSteps } from './replay.ts';
import { playKilledAndResumed } from './resume.ts';
import { BRANCH_POINT, KILLED, MAIN_GAINS, NOISE, REPLAY_FROM, REPLAYED, VARIANTS, type Variant } from './variant.ts';

export interface DemoOptions {
  readonly client: AnabranchClient;
  /** 0 to 2^32 - 1. The same seed gives the same steps. */
  readonly seed: number;
  /** Program and arguments that start the client of a variant. The task is appended as the last argument. */
  readonly variantCommand: readonly string[];
  readonly onEvent: (event: DemoEvent) => void;
  readonly signal: AbortSignal;
}

/** Any failure stops all work, including processes, before it is thrown. */
export async function runDemo(options: DemoOptions): Promise<DemoResult> {
  const main = await playMainLine(options);
  const variants = await playVariants(main, options);
  await replay(variants, options);
  await compare(main, variants, options);
  return { main, variants };
}

async function playMainLine({ client, seed, onEvent, signal }: DemoOptions): Promise<DemoTrajectory> {
  const name = `CartPole-v1, seed ${seed}`;
  const cart = CartPole.reset(seed, NOISE);
  const created = await client.trajectories.createTrajectory({
    name,
    taskId: 'CartPole-v1',
    labels: { demo: 'cartpole', seed: String(seed) },
    metadataJson: JSON.stringify({ gains: MAIN_GAINS, noise: NOISE }),
    root: checkpointOf(cart),
  });
  const { id } = present(created.trajectory);
  onEvent({ event: 'trajectory', name, trajectoryId: id, firstStepNumber: 0n });
  await play({ name, trajectoryId: id }, { cart, gains: MAIN_GAINS, client, onEvent, signal });
  await client.trajectories.setTag({ trajectoryId: id, name: 'fork', stepNumber: BRANCH_POINT });
  return { name, trajectoryId: id };
}

/** Creates the branches and plays them concurrently, each on its own stream. */
async function playVariants(main: DemoTrajectory, options: DemoOptions): Promise<DemoTrajectory[]> {
  const failure = new AbortController();
  const signal = AbortSignal.any([options.signal, failure.signal]);
  const playing = VARIANTS.map(async (variant) => {
    try {
      return await playVariant(main, variant, { ...options, signal });
    } catch (error) {
      failure.abort(error);
      throw error;
    }
  });
  await Promise.allSettled(playing);
  failure.signal.throwIfAborted(); // throws the first failure, which caused the others
  return Promise.all(playing);
}

async function playVariant(main: DemoTrajectory, variant: Variant, options: DemoOptions): Promise<DemoTrajectory> {
  const { client, onEvent, signal, variantCommand } = options;
  const { name, gains } = variant;
  const answer = await client.trajectories.branchTrajectory({
    trajectoryId: main.trajectoryId,
    tag: 'fork',
    name,
    labels: { demo: 'cartpole', seed: String(options.seed), variant: name },
    metadataJson: JSON.stringify({ gains, noise: NOISE }),
  });
  const branch = present(answer.trajectory);
  const trajectory = { name, trajectoryId: branch.id };
  onEvent({ event: 'trajectory', ...trajectory, firstStepNumber: branch.nextStepNumber });
  if (variant === KILLED) {
    const task = { address: client.url, trajectoryId: branch.id, gains };
    await playKilledAndResumed(name, task, { client, variantCommand, onEvent, signal });
  } else {
    const cart = await restoreAt(client, branch.id, branch.nextStepNumber - 1n);
    await play(trajectory, { cart, gains, client, onEvent, signal });
  }
  return trajectory;
}

type PlayOptions = Pick<Variant, 'gains'> & Pick<DemoOptions, 'client' | 'onEvent' | 'signal'> & { cart: CartPole };

async function play({ name, trajectoryId }: DemoTrajectory, options: PlayOptions): Promise<void> {
  const { cart, gains, client, onEvent, signal } = options;
  await using writer = await openWriter(client, { trajectoryId, signal });
  const onStep = (stepNumber: bigint) => onEvent({ event: 'step', name, stepNumber });
  const { nextStepNumber, message } = await playToEnd(writer, { cart, gains, signal, onStep });
  onEvent({ event: 'sealed', name, nextStepNumber, message });
}

/** Restores a checkpoint of one variant into a fresh environment and replays it. Throws if anything differs. */
async function replay(variants: readonly DemoTrajectory[], { client, onEvent, signal }: DemoOptions): Promise<void> {
  const variant = variants.find(({ name }) => name === REPLAYED.name);
  if (variant === undefined) throw new Error(`there is no variant ${REPLAYED.name}`);
  const { trajectoryId, name } = variant;
  const from = { trajectoryId, stepNumber: REPLAY_FROM, gains: REPLAYED.gains };
  const identicalSteps = await countIdenticalSteps(client, from, signal);
  onEvent({ event: 'replayed', name, fromStepNumber: REPLAY_FROM, identicalSteps });
}

async function compare(main: DemoTrajectory, variants: readonly DemoTrajectory[], options: DemoOptions): Promise<void> {
  for (const { name, trajectoryId } of variants) {
    const comparison = await options.client.trajectories.compareTrajectories({
      trajectoryId: main.trajectoryId,
      otherTrajectoryId: trajectoryId,
    });
    options.onEvent({ event: 'compared', name, comparison });
  }
}

function present(trajectory: Trajectory | undefined): Trajectory {
  if (trajectory === undefined) throw new Error('the response of the server has no trajectory');
  return trajectory;
}
