/**
 * Exports, imports, backs up or verifies databases in a process of its own, started with `--expose-gc`. Collects all
 * garbage again and again meanwhile, and writes how many bytes were left in use.
 */
import { createReadStream, createWriteStream } from 'node:fs';
import process from 'node:process';
import { pipeline } from 'node:stream/promises';
import { pino } from 'pino';
import { writeArchive } from '../../../src/archive/write.ts';
import type { Store } from '../../../src/store/contract/store.ts';
import { type Database, openStore } from '../../../src/store/open.ts';
import { backUp } from '../../../src/store/sqlite_file/backup.ts';

export type Task = 'export' | 'import' | 'backup' | 'verify';

/** What the process is to do, one after the other. */
export interface Work {
  readonly task: Task;
  readonly database: Database;
  readonly file: string;
}

export interface Measured {
  /**
   * Bytes of the heap and of buffers that were in use, less those in use before the task: each time they were counted.
   */
  readonly grown: readonly number[];
  /** Bytes of the archive or the backup, or rows that were verified. */
  readonly done: number;
}

const [list = '', namespace = '', mib = ''] = process.argv.slice(2);

/**
 * Bytes of an archive or a backup, or verified rows, between two collections: so many that databases of any size are
 * measured equally often.
 */
const EVERY = { bytes: Number(mib) * 100 * 1024, rows: Number(mib) * 2.5 } as const;

function inUse(): number {
  // The second one collects what finalizers of the first one have let go.
  for (let i = 0; i < 2; i += 1) globalThis.gc!();
  const { heapUsed, external } = process.memoryUsage();
  return heapUsed + external;
}

class Sampler {
  readonly grown: number[] = [];
  done = 0;
  #next = 0;
  readonly #before = inUse();

  sample(now: number, every: number): void {
    this.done = now;
    if (now < this.#next) return;
    this.#next = now + every;
    this.grown.push(inUse() - this.#before);
  }

  async *sampled(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array, void, undefined> {
    for await (const chunk of chunks) {
      this.sample(this.done + chunk.length, EVERY.bytes);
      yield chunk;
    }
  }
}

const TASKS: Readonly<Record<Task, (store: Store, work: Work, sampler: Sampler) => Promise<void>>> = {
  async export(store, { file }, sampler) {
    const chunks = writeArchive(store.exportArchive(namespace, { kind: 'namespace' }));
    await pipeline(sampler.sampled(chunks), createWriteStream(file));
  },
  async import(store, { file }, sampler) {
    const parts = store.readArchive(sampler.sampled(createReadStream(file, { highWaterMark: 256 * 1024 })));
    for await (const _ of store.importArchive(namespace, parts));
  },
  async backup(_, { database, file }, sampler) {
    if (database.engine !== 'sqlite') throw new Error('only SQLite is backed up by the service');
    const { signal } = new AbortController();
    for await (const { chunk } of backUp(database.path, file, signal))
      sampler.sample(sampler.done + (chunk?.length ?? 0), EVERY.bytes);
  },
  async verify(store, _, sampler) {
    for await (const { doneSteps, doneStates } of store.verify())
      sampler.sample(Number(doneSteps + doneStates), EVERY.rows);
  },
};

const measured: Measured[] = [];
for (const work of JSON.parse(list) as readonly Work[]) {
  const store = await openStore(work.database, { logger: pino({ level: 'warn' }) });
  const sampler = new Sampler();
  await TASKS[work.task](store, work, sampler);
  await store.close();
  measured.push({ grown: sampler.grown, done: sampler.done });
}
process.stdout.write(JSON.stringify(measured));
