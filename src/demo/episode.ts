/** Converts steps of CartPole to steps of a trajectory, and plays tasks in processes of their own. */
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import type { AnabranchClient, StepInit } from '../client/index.ts';
import { CartPole, choosePush, exactJson, type Gains } from './cartpole.ts';
import type { DemoEvent, DemoOptions, Shown } from './events.ts';

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

/** The event of a process that waits to be killed. */
export const HANGING = 'hanging';
/** Stands for the id of the process in what it reports. */
export const PID = '<pid>';

/**
 * Plays a task in a process of its own, which reports events as one JSON text per line, and shows them. If the process
 * hangs, kills it with SIGKILL, so that it can neither finish nor clean up, and returns its last event. Otherwise waits
 * until it has ended. Throws its error output if it fails. The signal kills it, too.
 */
export async function playInProcess(
  task: object,
  { client, clientCommand, onEvent, signal }: DemoOptions,
): Promise<DemoEvent | undefined> {
  const [program = '', ...args] = clientCommand;
  const child = spawn(program, [...args, JSON.stringify({ address: client.url, ...task })], {
    stdio: ['ignore', 'pipe', 'pipe'],
    signal,
    killSignal: 'SIGKILL',
  });
  let complaint = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    complaint = (complaint + text).slice(-2000);
  });
  const exited = new Promise<string>((resolve) => {
    // A process that the signal has killed has an error too, before it has ended.
    child.on('error', (error) => child.pid === undefined && resolve(`an error (${error.message})`));
    child.once('close', (code, killer) => resolve(killer === null ? `code ${code}` : `signal ${killer}`));
  });
  try {
    for await (const line of createInterface({ input: child.stdout })) {
      const [told, shown] = JSON.parse(line.replaceAll(PID, `${child.pid}`)) as [DemoEvent, Shown?];
      const event = { ...told, pid: child.pid };
      if (event.event === HANGING) return event;
      onEvent(event, shown);
    }
    const end = await exited;
    if (end === 'code 0') return undefined;
    throw new Error(`the client's process ended with ${end}: ${complaint.trim() || 'no output'}`);
  } finally {
    child.kill('SIGKILL');
    await exited;
  }
}

/** Blocks the whole event loop, like a process that is stuck in its environment, until the process is killed. */
export function standStill(): never {
  const seconds = 30;
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, seconds * 1000);
  throw new Error(`this process was not killed within ${seconds} seconds`);
}
