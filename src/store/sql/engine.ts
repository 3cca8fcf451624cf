import type { CallScope } from '../contract/store.ts';
import type { AppendsEngine } from './log/engine.ts';
import type { ClaimsEngine } from './records/claim/queue.ts';
import type { PointsEngine } from './records/metric/points.ts';
import type { IntegrityEngine } from './upkeep/verification/database.ts';

/** All that differs between the engines. Only the composition of the store knows all of it. */
export interface StoreEngine extends AppendsEngine, ClaimsEngine, PointsEngine, IntegrityEngine {
  readonly description: string;
  /** See `Store.lost`. */
  readonly lost: AbortSignal | undefined;

  within(call: CallScope | undefined): StoreEngine;

  /** Copies the log into the database file, when no read of this process needs it. Only SQLite has both. */
  emptyLog?(): Promise<void>;

  /** Idempotent. */
  close(): Promise<void>;
}

/** Members that depend on neither the call nor the kind of reads. All scopes of an engine share them. */
export type SharedMembers = Omit<
  StoreEngine,
  'within' | 'byIndex' | 'db' | 'reads' | 'transactions' | 'appends' | 'points' | 'integrity'
>;
