import type { FileWatch } from '../file_guard/watch.ts';
import type { Db, Tx } from '../sql/kit/engine.ts';
import type { ReadSlots } from '../sql/kit/reading/slots.ts';
import type { Connection } from './connection.ts';
import type { Wal } from './wal.ts';
import type { WriteLock } from './write_lock.ts';

export interface WritesDeps {
  readonly writer: Connection;
  /** Statements of transactions, over the same connection. */
  readonly writing: Db;
  readonly lock: WriteLock;
  readonly watch: FileWatch;
  readonly wal: Wal;
  readonly slots: ReadSlots;
}

/** All transactions of the process, one after the other. What they return may be acked. */
export class Writes {
  readonly #deps: WritesDeps;

  constructor(deps: WritesDeps) {
    this.#deps = deps;
  }

  /** Runs `work` in one transaction. `by` is the writer, if it is known. */
  run<T>(work: (tx: Tx) => Promise<T>, by?: object): Promise<T> {
    const { writing } = this.#deps;
    return this.#guarded(
      () =>
        writing.connection().execute(async (tx) => {
          this.#begin();
          try {
            const result = await work(tx);
            this.#commit();
            return result;
          } catch (error) {
            this.#rollBack();
            throw error;
          }
        }),
      by,
    );
  }

  /** Runs `work` in one transaction and in one iteration of the event loop. Costs less than `run`. */
  runAtOnce<T>(work: () => T): Promise<T> {
    return this.#guarded(() => {
      this.#begin();
      try {
        const result = work();
        this.#commit();
        return result;
      } catch (error) {
        this.#rollBack();
        throw error;
      }
    });
  }

  /** Returns whether other transactions than the caller's last one were requested since the last call. */
  hadOthers(): boolean {
    return this.#deps.lock.hadOthers();
  }

  async #guarded<T>(transaction: () => T | Promise<T>, by?: object): Promise<T> {
    const { slots, lock, watch, wal } = this.#deps;
    slots.wrote(by);
    let result: T;
    try {
      result = await lock.run(() => {
        watch.lost.throwIfAborted();
        return transaction();
      });
    } catch (error) {
      throw await watch.explain(error);
    }
    wal.committed();
    await watch.checked();
    return result;
  }

  #begin(): void {
    this.#deps.writer.prepare('begin').run(NO_VALUES);
  }

  #commit(): void {
    this.#deps.writer.prepare('commit').run(NO_VALUES);
  }

  #rollBack(): void {
    this.#deps.writer.prepare('rollback').run(NO_VALUES);
  }
}

const NO_VALUES: readonly unknown[] = [];
