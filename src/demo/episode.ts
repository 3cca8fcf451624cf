/** Converts steps of CartPole to steps of a trajectory, and plays episodes into a writer. */
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import type { AnabranchClient, Sealed, StepInit, TrajectoryWriter } from '../client/index.ts';
import { CartPole, choosePush, exactJson, type Gains } from './cartpole.ts';

export const STATE_NAME = 'env';
/** Largest random deviation of the force, in newton. */
export const NOISE = 5;

/** Lets the controller act once. The step is a checkpoint: it contains the whole state of the environment. */
export function act(cart: CartPole, gains: Gains) {
  const push = choosePush(gains, cart.observation);
  const { reward, terminated, truncated } = cart.step(push);
  const actions = [{ type: 'discrete', name: 'push', content: { json: String(push) } }];
  return { ...checkpointOf(cart), actions, reward, terminated, truncated } satisfies StepInit;
}

/** Returns a step without an action: the current observation and state. After a reset it is the root. */
export function checkpointOf(cart: CartPole) {
  // The shortest decimals of each float32 that are parsed as the same bits.
  const json = `[${[...cart.observation].map(exactJson).join(',')}]`;
  return {
    stepNumber: BigInt(cart.state.steps),
    observations: [{ type: 'cartpole', content: { json } }],
    states: [{ name: STATE_NAME, data: cart.snapshot(), mediaType: 'application/json' }],
  };
}

/** Restores the environment as it was after a step. */
export async function restoreAt(client: AnabranchClient, trajectoryId: string, stepNumber: bigint): Promise<CartPole> {
  const { step } = await client.trajectories.getCheckpoint({ trajectoryId, stepNumber, stateNames: [STATE_NAME] });
  const snapshot = step?.states.find((state) => state.name === STATE_NAME)?.data;
  if (snapshot === undefined) {
    throw new Error(`step ${stepNumber} of trajectory ${trajectoryId} has no state "${STATE_NAME}"`);
  }
  return CartPole.restore(snapshot);
}

export function isOver(cart: CartPole): boolean {
  return cart.terminated || cart.truncated;
}

interface Play {
  readonly cart: CartPole;
  readonly gains: Gains;
  readonly signal: AbortSignal;
  readonly onStep: (stepNumber: bigint) => unknown;
}

/** Plays to the end and seals the trajectory. Each step is durable before the next one is played. */
export async function playToEnd(writer: TrajectoryWriter, { cart, gains, signal, onStep }: Play): Promise<Sealed> {
  while (!isOver(cart)) {
    signal.throwIfAborted();
    const { stepNumber } = await writer.append(act(cart, gains));
    await onStep(stepNumber);
  }
  const { steps, x } = cart.state;
  if (!cart.terminated) return writer.seal(Status.COMPLETED, `balanced for ${steps} steps`);
  return writer.seal(Status.FAILED, `${Math.abs(x) > 2.4 ? 'left the track' : 'fell'} at step ${steps}`);
}
