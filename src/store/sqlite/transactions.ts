import type { CompiledQuery } from 'kysely';
import type { CallScope } from '../contract/store.ts';
import { traced } from '../contract/trace.ts';
import { type AfterCommit, Later, type Transactions, type Tx } from '../sql/kit/engine.ts';
import { nextIteration } from '../sql/kit/reading/slots.ts';
import type { Connection } from './connection.ts';
import type { Writes } from './writes.ts';

/** Length of the pause between two transactions of a deletion, as a multiple of the time that the first one took. */
const PAUSE_PER_WORK = 2;
/** Bound on that pause, in milliseconds. */
const LONGEST_PAUSE_MS = 100;

/** A transaction in traces: its statements have no parts of their own. */
export const TRANSACTION = 'transaction';

export interface TransactionsDeps {
  readonly writer: Connection;
  readonly writes: Writes;
}

/** Transactions on the writing connection, for one call or for work that outlives calls. */
export class SqliteTransactions implements Transactions {
  readonly #deps: TransactionsDeps;
  readonly #call: CallScope | undefined;

  constructor(deps: TransactionsDeps, call: CallScope | undefined) {
    this.#deps = deps;
    this.#call = call;
  }

  run<T>(work: (tx: Tx, afterCommit: AfterCommit) => Promise<T | Later<T>>): Promise<T> {
    const whileWanted = async (tx: Tx, afterCommit: AfterCommit): Promise<T> => {
      this.#call?.signal.throwIfAborted(); // The call may have ended while it waited for the write lock.
      const result = await work(tx, afterCommit);
      return result instanceof Later ? result.value : result;
    };
    return traced(
      this.#call?.trace,
      () => TRANSACTION,
      () => this.#deps.writes.run(whileWanted, this, this.#call?.namespace),
    );
  }

  async ask<Row>(_tx: Tx, query: CompiledQuery<Row>): Promise<Row[]> {
    return readOwn(this.#deps.writer, query) as Row[];
  }

  async giveWayAfter<T>(transaction: () => Promise<T>): Promise<T> {
    const begun = performance.now();
    const result = await transaction();
    const pause = Math.min((performance.now() - begun) * PAUSE_PER_WORK, LONGEST_PAUSE_MS);
    const hadOthers = this.#deps.writes.hadOthers();
    await (hadOthers ? new Promise((resolve) => setTimeout(resolve, pause)) : nextIteration());
    return result;
  }
}

/** Reads on the writing connection, which sees the transaction's own writes. */
export function readOwn(writer: Connection, { sql: text, parameters }: CompiledQuery<unknown>): unknown[] {
  return writer.prepare(text).all(parameters);
}
