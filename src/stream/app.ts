import { databaseReplaced } from '../domain/errors.ts';
import type { Verifiers } from '../domain/identity.ts';
import type { CallScope, Store } from '../store/contract/store.ts';
import type { TracePart } from '../store/contract/trace.ts';
import { Committer, type TracedCommit } from './append/committer.ts';
import { WaitingSteps } from './append/waiting.ts';
import { ChangeHub } from './change_hub.ts';
import { Credentials } from './credentials.ts';
import { createDrain, type Drain } from './drain.ts';
import { type ShrinkableFile, startReturningSpace } from './free_space.ts';
import { ImportSlots } from './import_slots.ts';
import { createLineageCache, type LineageCache } from './lineage_cache.ts';
import { type Maintenance, startMaintenance } from './maintenance.ts';
import { Merging } from './merging.ts';
import { type PrincipalLoad, Principals } from './principals.ts';
import { startRetention } from './retention.ts';
import { type ClaimCollector, createClaimCollector } from './rollouts/claim_collector.ts';
import { RunFeeds } from './runs/run_feed.ts';
import { type AppSettings, DEFAULT_SETTINGS, type Logger, type Meter, NO_METER, type Tracing } from './settings.ts';
import { createFeeds, type Feeds } from './steps/feed.ts';
import { TokenKeys } from './token_keys.ts';

export interface Ids {
  /** A UUIDv7 for a resource. */
  uuid(): string;
  /** A new UUID that identifies a row permanently. */
  uid(): string;
}

interface AppDeps {
  readonly store: Store;
  /** The file of the database, if it must be shortened by its user. */
  readonly file?: ShrinkableFile | undefined;
  readonly ids: Ids;
  /** Of credentials that are no API keys. Default: none are accepted. */
  readonly verifiers?: Verifiers | undefined;
  readonly logger: Logger;
  /** Default: `NO_METER`. */
  readonly meter?: Meter;
  /** Default: nothing is traced. */
  readonly tracing?: Tracing | undefined;
  readonly settings: Partial<AppSettings>;
}

/** The context of every method. */
export interface App {
  /** The call, and the store within the call. Parts that serve several calls use a store without a call. */
  readonly call: CallScope;
  readonly store: Store;
  readonly ids: Ids;
  readonly logger: Logger;
  readonly meter: Meter;
  readonly tracing: Tracing | undefined;
  readonly settings: AppSettings;
  readonly committer: Committer;
  readonly waiting: WaitingSteps;
  readonly claims: ClaimCollector;
  readonly lineages: LineageCache;
  readonly changes: ChangeHub;
  readonly feeds: Feeds;
  readonly runFeeds: RunFeeds;
  readonly imports: Pick<ImportSlots, 'enter' | 'pace'>;
  readonly merging: Pick<Merging, 'bytes' | 'trajectories' | 'idle' | 'isWorking'>;
  readonly maintenance: Pick<Maintenance, 'purgeSoon' | 'cancelSoon'>;
  /** Undefined: callers are not authenticated. */
  readonly credentials: Pick<Credentials, 'of' | 'ofCertificate'> | undefined;
  readonly tokens: Pick<TokenKeys, 'seal' | 'open'>;
  readonly principals: Principals;
  /** Calls that wait for changes. */
  readonly waits: { watchers: number; claims: number };
  /** What the principal of the call does at once. Undefined: it has no limits. */
  readonly load: Pick<PrincipalLoad, 'enter' | 'waitingBytes'> | undefined;
  /** A2: when the drain begins, streams end with SERVER_DRAINING, append streams after the acks of all their frames. */
  readonly drain: Drain;
  /** Drains, commits what was received, and stops all timers. Does not close the store. Idempotent. */
  close(): Promise<void>;
}

export function createApp({
  store,
  file,
  ids,
  verifiers = {},
  logger,
  meter = NO_METER,
  tracing,
  settings: given,
}: AppDeps): App {
  const settings: AppSettings = Object.freeze({ ...DEFAULT_SETTINGS, ...given });
  const lineages = createLineageCache();
  const changes = new ChangeHub(store, settings);
  const merging = new Merging(store, logger, settings);
  const committer = new Committer(store, logger, {
    commitsAtOnce: settings.commitsAtOnce,
    appended: (appended) => merging.note(appended),
    committed: (steps, seconds) => meter.committed(steps, seconds),
    room: () => merging.room(),
    traced: tracing && ((calls) => tracedCommit(store, tracing.groupCommit(calls))),
  });
  const waiting = new WaitingSteps(settings.waitingBytes);
  const claims = createClaimCollector(store, logger);
  const feeds = createFeeds({ store, changes, lineages });
  const tokens = new TokenKeys(store);
  const stopHearing = store.onReplaced(() => {
    lineages.forgetAll();
    tokens.forgetAll();
    feeds.endAll(databaseReplaced('Read again from the next step on.'));
  });
  const drain = createDrain();
  const runFeeds = new RunFeeds({ store, changes, drain, settings });
  const credentials = settings.authenticated
    ? new Credentials({ store, verifiers, logger, meter, drain, settings })
    : undefined;
  const principals = new Principals(settings.perPrincipal);
  const imports = new ImportSlots(drain, settings.slowReaderMs);
  const maintenance = startMaintenance(store, { logger, meter }, settings, ids.uid());
  const retention = startRetention({ store, logger, meter, settings, newLease: ids.uid }, settings.retentionMs, drain);
  const space = file && startReturningSpace(file, { logger, meter }, settings.freeSpaceMs, () => merging.isWorking);
  const close = async (): Promise<void> => {
    drain.begin();
    const ends = [maintenance.stop(), retention.stop(), space?.stop(), credentials?.stop()];
    await Promise.all([committer.idle(), claims.idle(), ...ends]);
    await merging.stop();
    changes.close();
    stopHearing();
  };
  const call: CallScope = { signal: new AbortController().signal };
  return {
    call,
    store,
    ids,
    logger,
    meter,
    tracing,
    settings,
    committer,
    waiting,
    claims,
    lineages,
    changes,
    feeds,
    runFeeds,
    imports,
    merging,
    maintenance,
    credentials,
    tokens,
    principals,
    waits: { watchers: 0, claims: 0 },
    load: undefined,
    drain,
    close,
  };
}

/** Returns the store for a group commit that is traced, which serves several calls. */
function tracedCommit(store: Store, trace: TracePart): TracedCommit {
  const within = store.within({ signal: new AbortController().signal, trace });
  return { store: within, end: (error) => trace.end(error) };
}

/** Returns the context for one call: its statements end when the call does, and its streams with its credential. */
export function appWithin(app: App, call: CallScope, drain = app.drain, load: App['load'] = undefined): App {
  return { ...app, call, store: app.store.within(call), drain, load };
}
