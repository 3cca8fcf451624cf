import process from 'node:process';
import { connectClient, downloadState, openWriter, type TrajectoryWriter } from '../../src/client/index.ts';
import { countExternalMemoryAsHeap } from '../../src/external_memory.ts';
import { type StateWorkload, statesOf, WARM_UP_STATES, WORKLOADS } from '../state_workloads.ts';
import { percentile, program } from './program.ts';

const WARM_UP_READS = 10;

/**
 * Stores each state of a workload with a step, one stream per trajectory, and reads some of them back. The first states
 * of each sequence warm up client and server.
 */
export interface StoreStatesSettings {
  readonly address: string;
  readonly workload: StateWorkload;
  /** One stream per trajectory. Each stores a sequence of its own. */
  readonly trajectories: readonly string[];
  readonly seed: number;
  /** States that are read back from each trajectory. */
  readonly readBack: number;
}

export interface StoreStatesFigures {
  readonly sentBytes: number;
  readonly states: number;
  /** Of the states after the first ones. */
  readonly statesPerSecond: number;
  readonly bytesPerSecond: number;
  /** From sending a step to its ack. */
  readonly putP50Ms: number;
  readonly restoreP50Ms: number;
  readonly restoreP99Ms: number;
}

// Else the client collects its whole heap after each 32 MB of states, for 10 to 50 ms: longer than a restore may take.
countExternalMemoryAsHeap(process.versions.node);
await program(async (settings: StoreStatesSettings): Promise<StoreStatesFigures> => {
  const { address, workload, trajectories, seed, readBack } = settings;
  const client = connectClient({ address });
  const { mediaType, states: count } = WORKLOADS[workload];
  const readNumbers = new Set(Array.from({ length: readBack }, (_, n) => (n * 7919) % count));
  const kept = trajectories.map(() => new Map<number, Buffer>());
  // Large sequences do not fit into memory, so they are made while they are sent.
  const isLarge = workload === 'conversation';
  const sequences = trajectories.map((_, i) =>
    isLarge ? statesOf(workload, seed + i) : [...statesOf(workload, seed + i)].values(),
  );
  let sentBytes = 0;
  const putMs: number[] = [];
  const store = async (writer: TrajectoryWriter, i: number, from: number, to: number) => {
    for (let number = from; number < to; number += 1) {
      const data = sequences[i]!.next().value as Buffer;
      sentBytes += data.length;
      if (readNumbers.has(number)) kept[i]!.set(number, data);
      const sentAt = performance.now();
      await writer.append({ states: { env: { data, mediaType } } });
      if (from > 0) putMs.push(performance.now() - sentAt);
    }
  };
  const writers = await Promise.all(trajectories.map((trajectoryId) => openWriter(client, { trajectoryId })));
  await Promise.all(writers.map((writer, i) => store(writer, i, 0, WARM_UP_STATES)));
  const bytesBefore = sentBytes;
  const begun = performance.now();
  await Promise.all(writers.map((writer, i) => store(writer, i, WARM_UP_STATES, count)));
  const seconds = (performance.now() - begun) / 1000;
  await Promise.all(writers.map((writer) => writer.close()));
  const restoreMs: number[] = [];
  const restore = async (i: number, stepNumber: number, data: Buffer) => {
    const askedAt = performance.now();
    const bytes = await downloadState(client, { trajectoryId: trajectories[i]!, stepNumber: BigInt(stepNumber) });
    restoreMs.push(performance.now() - askedAt);
    if (Buffer.compare(bytes, data) !== 0) throw new Error('another state was read');
  };
  // The first reads start the threads that read, and are not measured.
  for (const [stepNumber, data] of [...kept[0]!].slice(0, WARM_UP_READS)) await restore(0, stepNumber, data);
  restoreMs.length = 0;
  for (const [i, states] of kept.entries()) {
    for (const [stepNumber, data] of states) await restore(i, stepNumber, data);
  }
  return {
    sentBytes,
    states: count * trajectories.length,
    statesPerSecond: ((count - WARM_UP_STATES) * trajectories.length) / seconds,
    bytesPerSecond: (sentBytes - bytesBefore) / seconds,
    putP50Ms: percentile(putMs, 0.5),
    restoreP50Ms: percentile(restoreMs, 0.5),
    restoreP99Ms: percentile(restoreMs, 0.99),
  };
});
