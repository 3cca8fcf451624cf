import type { CallScope } from '../contract/store.ts';
import { SharedMembers, type StoreEngine } from '../sql/engine.ts';
import type { Db } from '../sql/kit/engine.ts';
import { PostgresAppends } from './appends.ts';
import { PostgresIntegrity } from './integrity.ts';
import { PostgresPoints } from './points.ts';
import { PostgresReads, type ReadsDeps } from './reads.ts';
import { PostgresTransactions, type TransactionsDeps } from './transactions.ts';

interface Parts extends ReadsDeps, TransactionsDeps {
  readonly shared: SharedMembers;
}

/** The engine for one call, or for work that outlives calls. */
export class PostgresEngine extends SharedMembers implements StoreEngine {
  readonly reads: PostgresReads;
  readonly transactions: PostgresTransactions;
  readonly appends: PostgresAppends;
  readonly points: PostgresPoints;
  readonly integrity: PostgresIntegrity;
  readonly #parts: Parts;
  readonly #call: CallScope | undefined;

  constructor(parts: Parts, call?: CallScope, plansByIndex = false) {
    super(parts.shared);
    this.reads = new PostgresReads(parts, call, plansByIndex);
    this.transactions = new PostgresTransactions(parts, call);
    this.appends = new PostgresAppends(parts, call);
    this.points = new PostgresPoints(parts, this.reads, call);
    this.integrity = new PostgresIntegrity(this.transactions);
    this.#parts = parts;
    this.#call = call;
  }

  get db(): Db {
    return this.reads.db;
  }

  within(call: CallScope | undefined): StoreEngine {
    if (call !== undefined) this.#parts.pool.begin(call);
    return new PostgresEngine(this.#parts, call);
  }

  byIndex(): StoreEngine {
    return new PostgresEngine(this.#parts, this.#call, true);
  }
}
