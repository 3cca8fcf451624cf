import { connectClient, openWriter, type StepInit, type TrajectoryWriter } from '../../src/client/index.ts';
import { program } from './program.ts';

/** Steps of CartPole that the client appends to four trajectories. */
export interface WriterSettings {
  readonly address: string;
  readonly steps: number;
}

export interface WriterFigures {
  readonly stepsPerSecond: number;
  readonly cpuMicrosPerStep: number;
}

const TRAJECTORIES = 4;
const DATA = Array.from({ length: 1000 }, (_, i) => new Uint8Array(Float32Array.of(i, i / 2, i / 3, i / 5).buffer));

await program(async ({ address, steps }: WriterSettings): Promise<WriterFigures> => {
  const client = connectClient({ address });
  const writers = await Promise.all(
    Array.from({ length: TRAJECTORIES }, () =>
      openWriter(client, { trajectoryId: crypto.randomUUID(), create: { trajectory: { taskId: 'bench' } } }),
    ),
  );
  await append(writers, steps / 5);
  const begun = performance.now();
  const cpu = process.cpuUsage();
  await append(writers, steps);
  const { user, system } = process.cpuUsage(cpu);
  return {
    stepsPerSecond: (steps / (performance.now() - begun)) * 1000,
    cpuMicrosPerStep: (user + system) / steps,
  };
});

/** Appends steps in turn and returns when all are durable. */
async function append(writers: readonly TrajectoryWriter[], steps: number): Promise<void> {
  for (let number = 0; number < steps / writers.length; number += 1) {
    const step: StepInit = {
      actions: [{ content: { json: String(number % 2) } }],
      observations: [{ content: { tensor: { dtype: '<f4', shape: [4], data: DATA[number % 1000]! } } }],
      reward: 1,
    };
    for (const writer of writers) void writer.append(step);
  }
  await Promise.all(writers.map((writer) => writer.flush()));
}
