import type { CallScope } from '../contract/store.ts';
import type { SharedMembers, StoreEngine } from '../sql/engine.ts';
import { SqliteIntegrity } from './integrity.ts';
import { type PointsDeps, SqlitePoints } from './points.ts';
import { type ReadsDeps, SqliteReads } from './reads.ts';
import { SqliteTransactions, type TransactionsDeps } from './transactions.ts';

interface Parts extends ReadsDeps, TransactionsDeps, PointsDeps {
  readonly path: string;
  readonly shared: SharedMembers;
}

/** Returns the engine for one call, or for work that outlives calls. */
export function sqliteEngine(parts: Parts, call?: CallScope): StoreEngine {
  const reads = new SqliteReads(parts, call);
  const engine: StoreEngine = {
    ...parts.shared,
    get db() {
      return reads.db;
    },
    reads,
    transactions: new SqliteTransactions(parts, call),
    /** A transaction costs no more. */
    appends: undefined,
    points: new SqlitePoints(parts, reads, call),
    integrity: new SqliteIntegrity(parts.path, call),
    within: (next) => sqliteEngine(parts, next),
    /** The prepared statistics make every read use indexes. */
    byIndex: () => engine,
  };
  return engine;
}
