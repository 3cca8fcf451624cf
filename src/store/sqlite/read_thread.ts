import { parentPort, workerData } from 'node:worker_threads';
import { Connection, openReader } from './connection.ts';
import { makeInterruptible } from './interruption.ts';
import { readStretch } from './metric_points.ts';
import type { ReadFailure, ReadJob, ReadReply, ReadRequest, ReadThreadOptions } from './read_job.ts';

/** The program of a read thread: a connection of its own, and one job at a time. */

const { path, cancelled } = workerData as ReadThreadOptions;
const cancelledId = new Int32Array(cancelled);
let currentId = 0;

const database = openReader(path);
makeInterruptible(database, () => {
  if (Atomics.load(cancelledId, 0) === currentId) throw new Error('the job was cancelled');
});
const reader = new Connection(database);

parentPort?.on('message', ({ id, job }: ReadRequest) => {
  currentId = id;
  const begun = performance.now();
  const answer = (outcome: { result: unknown[] } | { error: ReadFailure }) => {
    const reply: ReadReply = { id, milliseconds: performance.now() - begun, ...outcome };
    parentPort?.postMessage(reply);
  };
  try {
    answer({ result: run(job) });
  } catch (error) {
    const { message, stack, code, errcode } = error as Error & { code?: unknown; errcode?: unknown };
    answer({ error: { message, stack, code, errcode } });
  }
});

function run(job: ReadJob): unknown[] {
  if (job.kind === 'stretches') return job.stretches.map((stretch) => readStretch(reader, job.series, stretch));
  const statement = job.kind === 'arrays' ? reader.prepareRows(job.text) : reader.prepare(job.text);
  return statement.all(job.parameters);
}
