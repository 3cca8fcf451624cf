import type { DatabaseSync } from 'node:sqlite';
import { type MessagePort, parentPort, workerData } from 'node:worker_threads';
import { Connection, openCopier, openReader } from './connection.ts';
import { makeInterruptible } from './interruption.ts';
import { readExtrema } from './points.ts';
import type { ReadJob, ReadReply, ReadRequest, ReadRows, ReadThreadOptions, StatementJob } from './read_threads.ts';

/**
 * Program of a read thread, which has its own connection and runs one job at a time. It loads no package, because each
 * thread loads its modules again, and Kysely alone takes five times as long as the rest.
 */
class ReadThread {
  readonly #reader: Connection;
  readonly #cancelledId: Int32Array;
  #currentId = 0;

  constructor(database: DatabaseSync, cancelled: SharedArrayBuffer) {
    this.#cancelledId = new Int32Array(cancelled);
    makeInterruptible(database, () => {
      if (Atomics.load(this.#cancelledId, 0) === this.#currentId) throw new Error('the job was cancelled');
    });
    this.#reader = new Connection(database);
  }

  serve(port: MessagePort): void {
    port.on('message', ({ id, job }: ReadRequest) => {
      this.#currentId = id;
      port.postMessage(this.#replyTo(job));
    });
  }

  #replyTo(job: ReadJob): ReadReply {
    const begun = performance.now();
    try {
      const outcome = this.#run(job);
      return { milliseconds: performance.now() - begun, ...outcome };
    } catch (error) {
      const { message, stack, code, errcode } = error as Error & { code?: unknown; errcode?: unknown };
      return { milliseconds: performance.now() - begun, error: { message, stack, code, errcode } };
    }
  }

  #run(job: ReadJob): Pick<ReadReply, 'result' | 'columns'> {
    switch (job.kind) {
      case 'extrema':
        return { result: job.ranges.map((range) => readExtrema(this.#reader, job.series, range)) };
      case 'arrays':
        return { result: this.#reader.prepare(job.text, 'arrays').all(job.parameters) };
      case 'snapshot':
        return { result: this.#inTransaction(() => job.statements.map((statement) => this.#rowsOf(statement))) };
      case 'objects': {
        const { rows, columns } = this.#rowsOf(job);
        return { result: rows as unknown[][], columns };
      }
    }
  }

  #rowsOf({ text, parameters }: Pick<StatementJob, 'text' | 'parameters'>): ReadRows {
    const statement = this.#reader.prepare(text, 'exact arrays');
    return { rows: statement.all(parameters) as unknown[][], columns: statement.columns };
  }

  /**
   * The connection is read-only, so the transaction must be `deferred`: plain `begin` is prepared as `begin immediate`.
   */
  #inTransaction<T>(work: () => T): T {
    this.#reader.prepare('begin deferred').run([]);
    try {
      return work();
    } finally {
      this.#reader.prepare('rollback').run([]);
    }
  }
}

const { path, identity, copiesLog, cancelled } = workerData as ReadThreadOptions;
if (parentPort === null) throw new Error('this program runs as a thread');
new ReadThread(copiesLog ? openCopier(path, identity) : openReader(path, identity), cancelled).serve(parentPort);
