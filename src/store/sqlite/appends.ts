import type { CallScope } from '../contract/store.ts';
import { traced } from '../contract/trace.ts';
import { sumColumns } from '../sql/kit/running_sums.ts';
import { SEGMENT_NAMES, SEGMENTS } from '../sql/kit/tables/steps.ts';
import { valuesOf } from '../sql/kit/tables/table.ts';
import { END_UPDATE } from '../sql/log/append/heads.ts';
import type { Appends, SeenAppend } from '../sql/log/engine.ts';
import { indexedNamesOf } from '../sql/log/segments.ts';
import type { SqliteBulkRows } from './bulk_rows.ts';
import { CLOCK, type Connection } from './connection.ts';
import { TRANSACTION } from './transactions.ts';
import type { Writes } from './writes.ts';

export interface AppendsDeps {
  readonly writer: Connection;
  readonly writes: Writes;
  readonly bulk: SqliteBulkRows;
}

const READ_TIME = `select ${CLOCK}() as now`;

const MOVE_SEEN = `update trajectories
  set ${END_UPDATE.columns.map(({ name }) => `${name} = ?`).join(', ')}, update_time = ?
  where tree = ? and key = ?
    and next_step_number = ? and writer_epoch = ? and status = 'RUNNING' and not hidden`;

/** Appends by prepared statements, in a transaction that waits for nothing between its statements. */
export class SqliteAppends implements Appends {
  readonly #deps: AppendsDeps;
  readonly #call: CallScope | undefined;

  constructor(deps: AppendsDeps, call: CallScope | undefined) {
    this.#deps = deps;
    this.#call = call;
  }

  toSeen(
    decide: (now: string) => readonly SeenAppend[],
    committed: (times: ReadonlyMap<bigint, string>) => void,
  ): Promise<Map<bigint, string>> {
    const append = () => {
      this.#call?.signal.throwIfAborted(); // The call may have ended while it waited for the write lock.
      return this.#append(decide);
    };
    return traced(
      this.#call?.trace,
      () => TRANSACTION,
      () => this.#deps.writes.runAtOnce(append, committed),
    );
  }

  #append(decide: (now: string) => readonly SeenAppend[]): Map<bigint, string> {
    const { writer, bulk } = this.#deps;
    const [{ now }] = writer.prepare(READ_TIME).all([]) as [{ now: string }];
    const move = writer.prepare(MOVE_SEEN);
    const times = new Map<bigint, string>();
    for (const { seen, end, sums, segments } of decide(now)) {
      const { tree, key, nextStepNumber, writerEpoch } = seen;
      const moved = valuesOf({ next_step_number: end, ...sumColumns(sums) }, END_UPDATE.columns);
      const { changes } = move.run([...moved, now, tree, key, nextStepNumber, writerEpoch]);
      if (Number(changes) === 0) continue;
      bulk.insertNow(SEGMENTS, segments);
      bulk.insertNow(SEGMENT_NAMES, indexedNamesOf(segments));
      times.set(key, now);
    }
    return times;
  }
}
