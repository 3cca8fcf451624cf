import type { CallScope, Store } from '../store/contract/store.ts';
import { type ChangeHub, createChangeHub } from './change_hub.ts';
import { createDrain, type Drain } from './drain.ts';
import { createLineageCache, type LineageCache } from './lineage_cache.ts';
import { type Maintenance, startMaintenance } from './maintenance.ts';
import { type ClaimCollector, createClaimCollector } from './rollout/claim_collector.ts';
import { type Committer, createCommitter } from './trajectory/append/committer.ts';
import { createFeeds, type Feeds } from './trajectory/feed.ts';

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
  readonly settings: Partial<AppSettings>;
}

export interface AppSettings {
  /** Groups of batches that may be in flight at once: 1 for an engine with one writer, more where transactions run side by side. */
  readonly commitLanes: number;
  /** A reader of a stream that takes nothing for so long is cut off (R3). */
  readonly slowReaderMs: number;
  /** A follower or a watcher is told at least this often that it is caught up (RD2). */
  readonly progressMs: number;
  /** Followers and watchers look again this often, hint or no hint (RD2). */
  readonly pollMs: number;
  /** A watcher of a run is told of changes at most this often (M5). */
  readonly watchMs: number;
  /** Between two rounds of maintenance; 0: none. */
  readonly maintenanceMs: number;
  /** Between two looks for stale runs that asked to be failed; 0: none. */
  readonly staleSweepMs: number;
  /** Between two looks for leases that have ended (Q3); 0: none. */
  readonly leaseSweepMs: number;
  /** What a claim has found is there at the latest so long after it looked: its statements are given up before. */
  readonly claimMostMs: number;
  /** A claim that waits looks again at hints at most this often (Q2). */
  readonly claimRestMs: number;
  /** How long a state lives that no step refers to (S2). */
  readonly stateTtlHours: number;
  /** How long an idempotency key is kept (ID1). */
  readonly requestDays: number;
}

const DEFAULTS: AppSettings = {
  commitLanes: 1,
  slowReaderMs: 60_000,
  progressMs: 15_000,
  pollMs: 1000,
  watchMs: 250,
  maintenanceMs: 10 * 60_000,
  staleSweepMs: 5000,
  leaseSweepMs: 1000,
  claimMostMs: 10_000,
  claimRestMs: 100,
  stateTtlHours: 24,
  requestDays: 7,
};

/** The context of every use case. */
export interface App {
  /** The call that it serves, and the store within that call. What serves several calls has a store without one. */
  readonly call: CallScope;
  readonly store: Store;
  readonly ids: Ids;
  readonly logger: Logger;
  readonly settings: AppSettings;
  readonly committer: Committer;
  readonly claims: ClaimCollector;
  readonly lineages: LineageCache;
  readonly changes: ChangeHub;
  readonly feeds: Feeds;
  readonly maintenance: Pick<Maintenance, 'purgeSoon' | 'cancelSoon'>;
  /** A2: once it begins, streams end with SERVER_DRAINING, open appends after what they had pushed was committed and acked. */
  readonly drain: Drain;
  /** Drains, commits what was taken, and stops all timers. Leaves the store open: whoever opened it closes it. Idempotent. */
  close(): Promise<void>;
}

export function createApp({ store, ids, logger, settings: given }: AppDeps): App {
  const settings: AppSettings = Object.freeze({ ...DEFAULTS, ...given });
  const lineages = createLineageCache();
  const changes = createChangeHub(store);
  const committer = createCommitter(store, logger, { lanes: settings.commitLanes });
  const claims = createClaimCollector(store, logger);
  const feeds = createFeeds({ store, changes, lineages, pollMs: settings.pollMs });
  const drain = createDrain();
  const maintenance = startMaintenance(store, logger, settings);
  const close = async (): Promise<void> => {
    drain.begin();
    await Promise.all([committer.idle(), claims.idle(), maintenance.stop()]);
    changes.close();
  };
  const call: CallScope = { signal: new AbortController().signal };
  return { call, store, ids, logger, settings, committer, claims, lineages, changes, feeds, maintenance, drain, close };
}

/** Returns the context for one call: its statements end when the call does. */
export function appWithin(app: App, call: CallScope): App {
  return { ...app, call, store: app.store.within(call) };
}
