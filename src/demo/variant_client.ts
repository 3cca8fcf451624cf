/**
 * The client of one variant, in a process of its own that can be killed. It keeps nothing that the store does not hold.
 * It continues where the trajectory ends, with the state there, whether the steps are its own or those of a killed
 * process (rule W13).
 */
import { setImmediate } from 'node:timers/promises';
import { connectClient, openWriter, type TrajectoryWriter } from '../client/index.ts';
import type { CartPole, Gains } from './cartpole.ts';
import { type Report, standStill } from './client_process.ts';
import { act, isOver, playToEnd, restoreAt } from './episode.ts';

export interface VariantTask {
  readonly address: string;
  readonly trajectoryId: string;
  readonly gains: Gains;
  /** After this step, continues without waiting for acks, stops with unacked steps, and waits to be killed. */
  readonly hangAfter: number | undefined;
}

/** Reports of the process, one JSON text per line. Step numbers are small here. */
export type VariantReport = { readonly nextStepNumber: number } & (
  | { readonly event: 'opened' | 'step' }
  | { readonly event: 'hanging'; readonly ackedNextStepNumber: number }
  | { readonly event: 'sealed'; readonly message: string }
);

/** Number of steps in flight when the process stops. Some are sent one by one, the rest at once. */
const BURST = 20;

export async function runVariantClient(
  { address, trajectoryId, gains, hangAfter }: VariantTask,
  report: Report<VariantReport>,
  signal: AbortSignal,
): Promise<void> {
  const client = connectClient({ address });
  try {
    await using writer = await openWriter(client, { trajectoryId, signal });
    report({ event: 'opened', nextStepNumber: Number(writer.nextStepNumber) });
    const cart = await restoreAt(client, trajectoryId, writer.nextStepNumber - 1n);
    const onStep = async (stepNumber: bigint) => {
      report({ event: 'step', nextStepNumber: Number(stepNumber) + 1 });
      if (cart.state.steps === hangAfter) await hang(writer, { cart, gains, report });
    };
    const { nextStepNumber, message } = await playToEnd(writer, { cart, gains, signal, onStep });
    report({ event: 'sealed', nextStepNumber: Number(nextStepNumber), message });
  } finally {
    client.close();
  }
}

interface Hanging {
  readonly cart: CartPole;
  readonly gains: Gains;
  readonly report: Report<VariantReport>;
}

async function hang(writer: TrajectoryWriter, { cart, gains, report }: Hanging): Promise<never> {
  for (let i = 0; i < BURST; i++) {
    if (isOver(cart))
      throw new Error(`the episode ended after ${cart.state.steps} steps, before the process was killed`);
    void writer.append(act(cart, gains));
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
