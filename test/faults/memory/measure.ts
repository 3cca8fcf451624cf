/**
 * Exports, imports, backs up or verifies a database in a process of its own, started with `--expose-gc`. Collects all
 * garbage again and again meanwhile, and writes how many bytes were left in use.
 */
import { createReadStream, createWriteStream } from 'node:fs';
import process from 'node:process';
import { pipeline } from 'node:stream/promises';
import { pino } from 'pino';
import { readArchive } from '../../../src/archive/read.ts';
import { writeArchive } from '../../../src/archive/write.ts';
import { type Database, openStore } from '../../../src/store/open.ts';
import { backUp } from '../../../src/store/sqlite_file/backup.ts';

export type Task = 'export' | 'import' | 'backup' | 'verify';

export interface Measured {
  /**
   * Bytes of the heap and of buffers that were in use, less those in use before the task: each time they were counted.
   */
  readonly grown: readonly number[];
  /** Bytes of the archive or the backup, or rows that were verified. */
  readonly done: number;
}

const [database = '', namespace = '', task = '', file = '', mib = ''] = process.argv.slice(2);

/**
 * Bytes of an archive or a backup, or verified rows, between two collections: so many that databases of any size are
 * measured equally often.
 */
const EVERY = { bytes: Number(mib) * 100 * 1024, rows: Number(mib) * 2.5 } as const;

const opened = JSON.parse(database) as Database;
const store = await openStore(opened, { logger: pino({ level: 'warn' }) });

function inUse(): number {
  // The second one collects what finalizers of the first one have let go.
  for (let i = 0; i < 2; i += 1) globalThis.gc!();
  const { heapUsed, external } = process.memoryUsage();
  return heapUsed + external;
}

const before = inUse();
const grown: number[] = [];
let [done, next] = [0, 0];

function sample(now: number, every: number): void {
  done = now;
  if (done < next) return;
  next = done + every;
  grown.push(inUse() - before);
}

async function* sampled(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array, void, undefined> {
  for await (const chunk of chunks) {
    sample(done + chunk.length, EVERY.bytes);
    yield chunk;
  }
}

const TASKS: Readonly<Record<Task, () => Promise<void>>> = {
  async export() {
    const chunks = writeArchive(store.exportArchive(namespace, { kind: 'namespace' }));
    await pipeline(sampled(chunks), createWriteStream(file));
  },
  async import() {
    const parts = readArchive(sampled(createReadStream(file, { highWaterMark: 256 * 1024 })));
    for await (const _ of store.importArchive(namespace, parts));
  },
  async backup() {
    if (opened.engine !== 'sqlite') throw new Error('only SQLite is backed up by the service');
    const { signal } = new AbortController();
    for await (const { chunk } of backUp(opened.path, file, signal)) sample(done + (chunk?.length ?? 0), EVERY.bytes);
  },
  async verify() {
    for await (const { doneSteps, doneStates } of store.verify()) sample(Number(doneSteps + doneStates), EVERY.rows);
  },
};

await TASKS[task as Task]();
await store.close();
process.stdout.write(JSON.stringify({ grown, done } satisfies Measured));
