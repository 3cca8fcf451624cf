import { type RawBuilder, sql } from 'kysely';
import type { Db, Tx } from '../sql/kit/engine.ts';
import type { KeptQueries } from '../sql/kit/kept_queries.ts';
import { readNow } from '../sql/kit/transaction.ts';
import {
  type Claims,
  inQueueOrder,
  openStage,
  type Queue,
  type QueuedRow,
  queuedColumns,
  queueOf,
  type StageName,
  taskIs,
  type Wanted,
} from '../sql/records/claim/queue.ts';
import type { SqliteChanges } from './changes.ts';
import type { Connection } from './connection.ts';
import { sqliteExpressions } from './expressions.ts';
import type { SqliteKeys } from './keys.ts';
import { readOwn } from './transactions.ts';

export interface ClaimsDeps {
  readonly writer: Connection;
  readonly writing: Db;
  readonly keys: SqliteKeys;
  readonly changes: SqliteChanges;
  readonly kept: KeptQueries;
}

type FoundRow = Omit<QueuedRow, 'next_trajectory'>;

/** Rows need no locks, because one transaction writes at a time. */
export class SqliteClaims implements Claims {
  readonly #deps: ClaimsDeps;

  constructor(deps: ClaimsDeps) {
    this.#deps = deps;
  }

  /** Plans use indexes already, and statements are planned once. */
  async begin(tx: Tx): Promise<{ now: string; mark: bigint }> {
    return { now: await readNow(tx, sqliteExpressions.now), mark: await this.#deps.changes.mark(tx) };
  }

  /** Reads queue by queue, each by its index. */
  async lockQueued(_tx: Tx, queues: readonly Queue[], wanted: Wanted, limit: number): Promise<QueuedRow[]> {
    const { writer, writing } = this.#deps;
    const columns = queuedColumns(sqliteExpressions);
    const found: FoundRow[] = [];
    for (const queue of queues) {
      const terms = { columns, stage: sql`${queue.stage}`, ofTask: taskIs(queue), limit: sql`${limit}` };
      const query = queueOf(sqliteExpressions, terms, wanted).compile(writing);
      found.push(...(readOwn(writer, query) as FoundRow[]));
    }
    if (queues.length > 1) found.sort(inQueueOrder);
    return this.#withKeys(found.slice(0, limit));
  }

  /** The most frequent claim, so its query is cached. */
  async lockNext(_tx: Tx, { namespace, id }: StageName, limit: number): Promise<QueuedRow[]> {
    const { writer, writing, kept } = this.#deps;
    const query = kept.of('next of stage', [namespace, id, limit], (of, named, most) => {
      const next = nextOfStage({ namespace: of, id: named }, sql`${most}`);
      return { compile: () => next.compile(writing) };
    });
    return this.#withKeys(readOwn(writer, query) as FoundRow[]);
  }

  #withKeys(rows: readonly FoundRow[]): QueuedRow[] {
    const first = rows.length === 0 ? 0n : this.#deps.keys.give('trajectories', rows.length);
    return rows.map((row, i) => Object.assign(row, { next_trajectory: first + BigInt(i) }));
  }
}

function nextOfStage(stage: StageName, limit: RawBuilder<unknown>): RawBuilder<unknown> {
  const columns = queuedColumns(sqliteExpressions);
  return queueOf(sqliteExpressions, { columns, stage: openStage(sqliteExpressions, stage), limit });
}
