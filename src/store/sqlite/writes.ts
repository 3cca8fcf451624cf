import type { FileWatch } from '../file_guard/watch.ts';
import type { AfterCommit, Db, Tx } from '../sql/kit/engine.ts';
import type { ReadSlots } from '../sql/kit/reading/slots.ts';
import type { KnownHeads } from '../sql/log/append/known_heads.ts';
import type { Connection } from './connection.ts';
import { HeadChanges } from './head_changes.ts';
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
  readonly known: KnownHeads;
}

/**
 * All transactions of the process, one after the other. What they return may be acked. Cached heads change only here:
 * together with COMMIT, under the lock, so each transaction finds them as the one before has left their rows.
 */
export class Writes {
  readonly #deps: WritesDeps;
  readonly #heads: HeadChanges;

  /** The schema must be complete. */
  constructor(deps: WritesDeps) {
    this.#deps = deps;
    this.#heads = new HeadChanges(deps.writer);
  }

  /** Runs `work` in one transaction. `by` is the writer, if it is known. Namespaces are served in turn. */
  run<T>(work: (tx: Tx, afterCommit: AfterCommit) => Promise<T>, by?: object, namespace?: string): Promise<T> {
    const { writing } = this.#deps;
    return this.#guarded(
      () =>
        writing.connection().execute(async (tx) => {
          const steps: (() => void)[] = [];
          try {
            this.#begin();
            const result = await work(tx, (step) => steps.push(step));
            this.#commit();
            for (const step of steps) step();
            return result;
          } catch (error) {
            this.#rollBack();
            throw error;
          }
        }),
      by,
      namespace,
    );
  }

  /**
   * Runs `work` in one transaction and in one iteration of the event loop, then `committed` (see `AfterCommit`). Costs
   * less than `run`.
   */
  runAtOnce<T>(work: () => T, committed?: (result: T) => void): Promise<T> {
    return this.#guarded(() => {
      try {
        this.#begin();
        const result = work();
        this.#commit();
        committed?.(result);
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

  async #guarded<T>(transaction: () => T | Promise<T>, by?: object, namespace?: string): Promise<T> {
    const { slots, lock, watch, wal } = this.#deps;
    slots.wrote(by);
    let result: T;
    try {
      result = await lock.run(() => {
        watch.lost.throwIfAborted();
        return transaction();
      }, namespace);
    } catch (error) {
      throw await watch.explain(error);
    }
    wal.committed();
    await watch.checked();
    return result;
  }

  #begin(): void {
    const { writer, known } = this.#deps;
    writer.prepare('begin').run(NO_VALUES);
    if (this.#heads.begin()) known.removeAll();
  }

  #commit(): void {
    const { writer, known } = this.#deps;
    writer.prepare('commit').run(NO_VALUES);
    for (const key of this.#heads.keys) known.remove(key);
  }

  /** There may be nothing to roll back. */
  #rollBack(): void {
    this.#deps.writer.prepare('rollback').run(NO_VALUES);
  }
}

const NO_VALUES: readonly unknown[] = [];
