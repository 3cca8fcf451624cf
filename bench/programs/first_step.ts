import { randomUUID } from 'node:crypto';
import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import { percentile, program } from './program.ts';

/** Creates trajectories one after the other, each with one step, over one connection. */
export interface FirstStepSettings {
  readonly address: string;
  /** Whether `open` creates the trajectory, instead of a call before it. */
  readonly inOpen: boolean;
  readonly warmupSeconds: number;
  readonly seconds: number;
}

export interface FirstStepFigures {
  /** From the begin of the first call to the ack of the step. */
  readonly p50Ms: number;
}

await program(async (settings: FirstStepSettings): Promise<FirstStepFigures> => {
  const { address, inOpen, warmupSeconds, seconds } = settings;
  const client = connectClient({ address });
  const work = async (forSeconds: number) => {
    const latencies: number[] = [];
    for (const end = performance.now() + forSeconds * 1000; performance.now() < end; ) {
      latencies.push(await firstStep(client, inOpen));
    }
    return latencies;
  };
  await work(warmupSeconds);
  return { p50Ms: percentile(await work(seconds), 0.5) };
});

async function firstStep(client: AnabranchClient, inOpen: boolean): Promise<number> {
  const begun = performance.now();
  const trajectory = { trajectoryId: randomUUID(), requestId: randomUUID(), name: 'first step' };
  const { trajectoryId } = trajectory;
  if (!inOpen) await client.trajectories.createTrajectory(trajectory);
  const open = { trajectoryId, writerId: 'bench', ...(inOpen && { create: { trajectory } }) };
  const frames = [{ open }, { steps: [{ reward: 1 }] }];
  let acked = Number.NaN;
  for await (const { ack } of client.trajectories.appendSteps(sent(frames))) {
    if (ack !== undefined) acked = performance.now() - begun;
  }
  return acked;
}

async function* sent<T>(frames: readonly T[]): AsyncGenerator<T> {
  yield* frames;
}
