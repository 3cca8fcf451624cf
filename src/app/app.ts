import type { Store } from '../store/contract/store.ts';
import type { ChangeHub } from './change_hub.ts';
import type { LineageCache } from './lineage_cache.ts';
import type { Committer } from './trajectory/append/committer.ts';

/** What the use cases need of a log: pino's interface, as far as it is used. Never payloads. */
export interface Logger {
  debug(fields: object, message: string): void;
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

export interface Ids {
  /** An id for a trajectory: a UUIDv7. */
  uuid(): string;
  /** A row's own key: a UUID never used before. */
  uid(): string;
}

export interface AppDeps {
  readonly store: Store;
  readonly ids: Ids;
  readonly logger: Logger;
  readonly settings?: Partial<AppSettings>;
}

export interface AppSettings {
  /** Groups of batches that may be in flight at once: 1 for an engine with one writer, more where transactions run side by side. */
  readonly commitLanes: number;
  /** A follower that takes nothing for so long is cut off (R3). */
  readonly slowReaderMs: number;
  /** A follower is told at least this often that it is caught up (RD2). */
  readonly progressMs: number;
  /** Followers look again this often, hint or no hint (RD2). */
  readonly pollMs: number;
  /** Between two rounds of maintenance; 0: none. */
  readonly maintenanceMs: number;
  /** How long a state lives that no step refers to (S2). */
  readonly stateTtlHours: number;
}

/** The context of every use case. */
export interface App {
  readonly store: Store;
  readonly ids: Ids;
  readonly logger: Logger;
  readonly settings: AppSettings;
  readonly committer: Committer;
  readonly lineages: LineageCache;
  readonly changes: ChangeHub;
  /** Aborted when the server shuts down: streams end with SERVER_DRAINING (A2). */
  readonly draining: AbortSignal;
  /** Begins to drain: no new streams; open appends commit and ack. Idempotent; `close` waits for the rest. */
  drain(): void;
  /** Drains, commits what was taken, and stops all timers. Leaves the store open: whoever opened it closes it. */
  close(): Promise<void>;
}

export function createApp(_deps: AppDeps): App {
  throw new Error('being written');
}
