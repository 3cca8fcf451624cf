import type { StoreLoad } from '../contract/load.ts';
import type { CallScope, Slots } from '../contract/store.ts';
import type { SegmentCompressor } from './kit/compression.ts';
import type { BulkRows, Changes, Keys, Locks } from './kit/engine.ts';
import type { Aggregates, Expressions } from './kit/expressions.ts';
import type { KeptQueries } from './kit/kept_queries.ts';
import type { KnownHeads } from './log/append/known_heads.ts';
import type { AppendsEngine, StateRows } from './log/engine.ts';
import type { Claims, ClaimsEngine } from './records/claim/queue.ts';
import type { PointsEngine } from './records/metric/points.ts';
import type { IntegrityEngine } from './upkeep/verification/database.ts';

/** All that differs between the engines. Only the composition of the store knows all of it. */
export interface StoreEngine extends SharedMembers, AppendsEngine, ClaimsEngine, PointsEngine, IntegrityEngine {
  within(call: CallScope | undefined): StoreEngine;
}

/** Members that depend on neither the call nor the kind of reads. All scopes of an engine have the same ones. */
export class SharedMembers {
  readonly description: string;
  /** See `Store.lost`. */
  readonly lost: AbortSignal | undefined;
  readonly sql: Expressions;
  readonly aggregates: Aggregates;
  readonly locks: Locks;
  readonly keys: Keys;
  readonly bulk: BulkRows;
  readonly changes: Changes;
  readonly stateRows: StateRows;
  readonly claims: Claims;
  readonly kept: KeptQueries;
  readonly known: KnownHeads;
  readonly compressor: SegmentCompressor;
  readonly slots: Slots;
  /** Whether this program can serve a schema with these migrations. */
  readonly canServe: (migrations: readonly string[]) => boolean;
  /** See `Store.load`. */
  readonly load: () => StoreLoad;
  /** Copies the log into the database file, when no read of this process needs it. Only SQLite has both. */
  readonly emptyWal: (() => Promise<void>) | undefined;
  /** See `Store.cutFreePages`. */
  readonly cutFreePages: ((pages: number) => Promise<void>) | undefined;
  /** Idempotent. */
  readonly close: () => Promise<void>;

  /** Names each member, because copies of unknown members are slow, and each call has a scope. */
  constructor(shared: SharedMembers) {
    this.description = shared.description;
    this.lost = shared.lost;
    this.sql = shared.sql;
    this.aggregates = shared.aggregates;
    this.locks = shared.locks;
    this.keys = shared.keys;
    this.bulk = shared.bulk;
    this.changes = shared.changes;
    this.stateRows = shared.stateRows;
    this.claims = shared.claims;
    this.kept = shared.kept;
    this.known = shared.known;
    this.compressor = shared.compressor;
    this.slots = shared.slots;
    this.canServe = shared.canServe;
    this.load = shared.load;
    this.emptyWal = shared.emptyWal;
    this.cutFreePages = shared.cutFreePages;
    this.close = shared.close;
  }
}
