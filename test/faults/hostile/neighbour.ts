import {
  type AnabranchClient,
  type ConnectOptions,
  connectClient,
  openWriter,
  readSteps,
} from '../../../src/client/index.ts';

/** A well-behaved client beside an attack. */
export interface Neighbour {
  /** Ends the client; returns the duration of its slowest call, and throws its error, if any. */
  leave(): Promise<{ readonly calls: number; readonly slowestMs: number }>;
}

/** Appends and reads on a connection of its own, one call after the other, until told to stop. */
export async function startNeighbour(options: ConnectOptions): Promise<Neighbour> {
  const client = connectClient(options);
  const { trajectory } = await client.trajectories.createTrajectory({ name: 'neighbour' });
  let leaving = false;
  let calls = 0;
  let slowestMs = 0;
  const timed = async (call: () => Promise<unknown>) => {
    const begun = performance.now();
    await call();
    calls += 1;
    slowestMs = Math.max(slowestMs, performance.now() - begun);
  };
  const begun = Promise.withResolvers<void>();
  const working = (async () => {
    let cuts = 0;
    const onEvent = ({ type }: { type: string }) => {
      if (type === 'cut') cuts += 1;
    };
    const writer = await openWriter(client, { trajectoryId: trajectory!.id, onEvent });
    while (!leaving) {
      await timed(() => writer.append({ reward: calls }));
      await timed(() => readLast(client, writer.trajectoryId, writer.nextStepNumber - 1n));
      begun.resolve();
    }
    await writer.close();
    if (cuts > 0) throw new Error(`the neighbour's stream was cut ${cuts} times`);
  })();
  working.finally(() => client.close()).catch(begun.reject);
  await begun.promise;
  return {
    leave: async () => {
      leaving = true;
      await working;
      return { calls, slowestMs };
    },
  };
}

async function readLast(client: AnabranchClient, trajectoryId: string, startStepNumber: bigint): Promise<void> {
  for await (const _ of readSteps(client, { trajectoryId, startStepNumber, endStepNumber: startStepNumber + 1n }));
}
