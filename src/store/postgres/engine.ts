import type { CallScope } from '../contract/store.ts';
import type { SharedMembers, StoreEngine } from '../sql/engine.ts';
import { PostgresAppends } from './appends.ts';
import { PostgresIntegrity } from './integrity.ts';
import { PostgresPoints } from './points.ts';
import { PostgresReads, type ReadsDeps } from './reads.ts';
import { PostgresTransactions, type TransactionsDeps } from './transactions.ts';

interface Parts extends ReadsDeps, TransactionsDeps {
  readonly shared: SharedMembers;
}

/** Returns the engine for one call, or for work that outlives calls. */
export function postgresEngine(parts: Parts, call?: CallScope, plansByIndex = false): StoreEngine {
  const reads = new PostgresReads(parts, call, plansByIndex);
  const transactions = new PostgresTransactions(parts, call);
  return {
    ...parts.shared,
    get db() {
      return reads.db;
    },
    reads,
    transactions,
    appends: new PostgresAppends(parts, call),
    points: new PostgresPoints(parts, reads, call),
    integrity: new PostgresIntegrity(transactions),
    within: (next) => postgresEngine(parts, next),
    byIndex: () => postgresEngine(parts, call, true),
  };
}
