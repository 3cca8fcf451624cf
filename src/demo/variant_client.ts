/**
 * The client of one variant, in a process of its own that can be killed. It keeps nothing that the store does not hold.
 * It continues where the trajectory ends, with the state there, whether the steps are its own or those of a killed
 * process (rule W13).
 */
import { setImmediate } from 'node:timers/promises';
import { connectClient, openWriter, type TrajectoryWriter } from '../client/index.ts';
import type { CartPole } from './cartpole.ts';
import type { Gains } from './controller.ts';
import { act, isOver, playToEnd, restoreAt } from './episode.ts';
import { standStill } from './reporting_process.ts';

export interface VariantTask {
  readonly address: string;
  readonly trajectoryId: string;
  readonly gains: Gains;
  /** After this step, continues without waiting for acks, stops with unacked steps, and waits to be killed. */
  readonly hangAfter?: number;
}

/** Reports of the process, one JSON text per line. Step numbers are small here. */
export type VariantReport =
  | { readonly event: 'opened'; readonly nextStepNumber: number; readonly epoch: number }
  | { readonly event: 'step'; readonly stepNumber: number }
  | { readonly event: 'hanging'; readonly nextStepNumber: number; readonly ackedNextStepNumber: number }
  | { readonly event: 'sealed'; readonly nextStepNumber: number; readonly status: number; readonly message: string };

/** Number of steps in flight when the process stops. Some are sent one by one, the rest at once. */
const BURST = 20;

export async function runVariantClient(
  task: VariantTask,
  { report, signal }: { report: (report: VariantReport) => void; signal: AbortSignal },
): Promise<void> {
  const client = connectClient({ address: task.address });
  try {
    await using writer = await openWriter(client, { trajectoryId: task.trajectoryId, signal });
    report({ event: 'opened', nextStepNumber: Number(writer.nextStepNumber), epoch: Number(writer.epoch) });
    const cart = await restoreAt(client, task.trajectoryId, writer.nextStepNumber - 1n);
    const onStep = (stepNumber: bigint) => report({ event: 'step', stepNumber: Number(stepNumber) });
    if (task.hangAfter !== undefined) await playAndHang(writer, { ...task, cart, onStep, report });
    const sealed = await playToEnd(writer, { cart, gains: task.gains, signal, onStep });
    const { status, message } = sealed;
    report({ event: 'sealed', nextStepNumber: Number(sealed.nextStepNumber), status, message });
  } finally {
    client.close();
  }
}

interface Hanging {
  readonly cart: CartPole;
  readonly gains: Gains;
  readonly hangAfter?: number;
  readonly onStep: (stepNumber: bigint) => void;
  readonly report: (report: VariantReport) => void;
}

async function playAndHang(writer: TrajectoryWriter, options: Hanging): Promise<never> {
  const { cart, gains, hangAfter = 0, onStep, report } = options;
  const next = () => {
    if (isOver(cart))
      throw new Error(`the episode ended after ${cart.state.steps} steps, before the process could be killed`);
    return writer.append(act(cart, gains));
  };
  while (cart.state.steps < hangAfter) onStep((await next()).stepNumber);
  for (let i = 0; i < BURST; i++) {
    void next();
    if (i < BURST / 2) await setImmediate();
  }
  // No code runs between the last append and the stop, so the second half of the burst cannot have been acked.
  const { nextStepNumber, ackedNextStepNumber } = writer;
  report({
    event: 'hanging',
    nextStepNumber: Number(nextStepNumber),
    ackedNextStepNumber: Number(ackedNextStepNumber),
  });
  standStill();
}
