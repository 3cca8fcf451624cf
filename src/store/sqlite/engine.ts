import type { CallScope } from '../contract/store.ts';
import { SharedMembers, type StoreEngine } from '../sql/engine.ts';
import type { Db } from '../sql/kit/engine.ts';
import { type AppendsDeps, SqliteAppends } from './appends.ts';
import { SqliteIntegrity } from './integrity.ts';
import { type PointsDeps, SqlitePoints } from './points.ts';
import { type ReadsDeps, SqliteReads } from './reads.ts';
import { SqliteTransactions, type TransactionsDeps } from './transactions.ts';

interface Parts extends ReadsDeps, TransactionsDeps, AppendsDeps, PointsDeps {
  readonly path: string;
  readonly shared: SharedMembers;
}

/** The engine for one call, or for work that outlives calls. */
export class SqliteEngine extends SharedMembers implements StoreEngine {
  readonly reads: SqliteReads;
  readonly transactions: SqliteTransactions;
  readonly appends: SqliteAppends;
  readonly points: SqlitePoints;
  readonly integrity: SqliteIntegrity;
  readonly #parts: Parts;

  constructor(parts: Parts, call?: CallScope) {
    super(parts.shared);
    this.reads = new SqliteReads(parts, call);
    this.transactions = new SqliteTransactions(parts, call);
    this.appends = new SqliteAppends(parts, call);
    this.points = new SqlitePoints(parts, this.reads, call);
    this.integrity = new SqliteIntegrity(parts.path, call);
    this.#parts = parts;
  }

  get db(): Db {
    return this.reads.db;
  }

  within(call: CallScope | undefined): StoreEngine {
    return new SqliteEngine(this.#parts, call);
  }

  /** The prepared statistics make every read use indexes. */
  byIndex(): StoreEngine {
    return this;
  }
}
