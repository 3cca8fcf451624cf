import { parentPort, workerData } from 'node:worker_threads';
import { append } from '../sql/append.ts';
import type { AppendAnswer, AppendRequest, AppendWorkerData } from './append_thread.ts';
import { carryError } from './carried_error.ts';
import { openSecondWriter } from './engine.ts';
import { type PackedBatches, packOutcomes, unpackBatches } from './packing.ts';

/** The program of the thread that commits large groups of appends, so that the one that serves is not held up by SQLite and the disk. */
const { path, clock } = workerData as AppendWorkerData;
const engine = openSecondWriter(path, clock);
const changed: bigint[] = [];
engine.onChange((key) => {
  if (key !== undefined) changed.push(key);
});

parentPort?.on('message', (request: AppendRequest) => {
  if (request === 'close') void engine.close().then(() => parentPort?.close());
  else void commit(request).then((answer) => parentPort?.postMessage(answer));
});
parentPort?.postMessage('ready' satisfies AppendAnswer);

async function commit(packed: PackedBatches): Promise<AppendAnswer> {
  changed.length = 0;
  try {
    const outcomes = await append(engine, unpackBatches(packed), 'bounded');
    return { outcomes: packOutcomes(outcomes), changed: [...changed] };
  } catch (error) {
    return { error: carryError(error) };
  }
}
