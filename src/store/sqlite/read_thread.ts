import { parentPort, workerData } from 'node:worker_threads';
import { Connection, openReader } from './connection.ts';
import { makeInterruptible } from './interruption.ts';
import { readStretch } from './metric_points.ts';
import type { ReadJob, ReadReply, ReadRequest, ReadThreadOptions } from './read_job.ts';

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
  parentPort?.postMessage(replyTo(job));
});

function replyTo(job: ReadJob): ReadReply {
  const begun = performance.now();
  try {
    const result = run(job);
    return { milliseconds: performance.now() - begun, result };
  } catch (error) {
    const { message, stack, code, errcode } = error as Error & { code?: unknown; errcode?: unknown };
    return { milliseconds: performance.now() - begun, error: { message, stack, code, errcode } };
  }
}

function run(job: ReadJob): unknown[] {
  if (job.kind === 'stretches') return job.stretches.map((stretch) => readStretch(reader, job.series, stretch));
  const statement = job.kind === 'arrays' ? reader.prepareRows(job.text) : reader.prepare(job.text);
  return statement.all(job.parameters);
}
