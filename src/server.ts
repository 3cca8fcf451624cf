import { randomFillSync, randomUUID } from 'node:crypto';
import { setTimeout as wait } from 'node:timers/promises';
import type { Logger } from 'pino';
import { v7 } from 'uuid';
import { ensureAdminKey } from './admin_key.ts';
import { type Config, describeDatabase } from './config/config.ts';
import { isLocal, urlOf } from './config/listening.ts';
import type { CopyProgress } from './domain/archive.ts';
import { AnabranchError } from './domain/errors.ts';
import { LIMITS } from './domain/limits.ts';
import type { VerificationProgress } from './domain/verification.ts';
import { type IdentityTimes, type OpenVerifiers, openVerifiers } from './identity/verifiers.ts';
import { ListenError, type Listening } from './listen/address.ts';
import { HEAP_BYTES } from './listen/heap.ts';
import { Port, type PortCounts, type PortLimits, type TlsOptions } from './listen/port.ts';
import { type Levels, Metrics, type ProcessMetrics } from './observe/metrics.ts';
import { Sampled } from './observe/sampled.ts';
import { isPage, servePage } from './page.ts';
import { createHandler, type HandlerDeps, type ServiceHandler } from './rpc/handler.ts';
import { aborted } from './rpc/health.ts';
import { answer, pathOf } from './rpc/http.ts';
import { sendMetrics } from './rpc/metrics.ts';
import { refuseForRoom } from './rpc/refusal.ts';
import type { Validator } from './rpc/validate.ts';
import { StartError } from './start_error.ts';
import { type Store, StoreOpenError } from './store/contract/store.ts';
import { copyStore } from './store/copy.ts';
import type { StorageLost } from './store/file_guard/watch.ts';
import { openStore, type StoreDeps } from './store/open.ts';
import { dropSchema, sizeOfSchema } from './store/postgres_schema/schema.ts';
import { SqliteFile } from './store/sqlite_file/file.ts';
import { compact, deleteFile } from './store/sqlite_file/unserved.ts';
import { type App, createApp, type Ids } from './stream/app.ts';
import type { AppSettings, Tracing } from './stream/settings.ts';
import { packageVersion } from './version.ts';

/** The composition root: builds the server from the store outward, and stops it in reverse order. */

export interface ServerDeps {
  readonly logger: Logger;
  /** Overrides of settings, for programs that contain a server, such as tests. */
  readonly settings?: Partial<AppSettings>;
  readonly portLimits?: Partial<PortLimits>;
  /** Overrides of the times of keys and files that tell who calls. */
  readonly identityTimes?: Partial<IdentityTimes> | undefined;
  /** Of the process. Default: the metrics of the server are only its own. */
  readonly processMetrics?: ProcessMetrics | undefined;
  /** Default: nothing is traced. */
  readonly tracing?: Tracing | undefined;
  /** For programs that start many servers: compiling the rules is most of the work of a start. */
  readonly validator?: Validator | undefined;
  /** Ends the wait for the schema of `--no-migrate`. Default: never. */
  readonly signal?: AbortSignal | undefined;
}

/** A running server. */
export interface RunningServer {
  /** Of a Unix socket: its path. */
  readonly host: string;
  /** The configured port, or the free port that was chosen. Of a Unix socket: 0. */
  readonly port: number;
  /** Address for clients on this machine: `http://127.0.0.1:50051`, `https://…` or `unix:PATH`. */
  readonly url: string;
  /** Where metrics are served without credentials. Undefined: nowhere. */
  readonly metricsUrl: string | undefined;
  /** Engine and location of the store, without secrets. */
  readonly storeDescription: string;
  /**
   * Aborted when the file of the database is lost. Nothing is acked and health is NOT_SERVING from then on, and the
   * server must be drained.
   */
  readonly lost: AbortSignal | undefined;
  /** Aborted when no client has been connected for the configured time. The server should be drained then. */
  readonly unused: AbortSignal | undefined;
  /** Open resources. All counts are 0 after every client has disconnected. */
  counts(): ServerCounts;
  /** Rereads the files of certificates and of the mapping. Never rejects. */
  reload(): Promise<void>;
  /**
   * Is no longer ready, and accepts calls for `lameDuckSeconds`, in which load balancers learn that it leaves. Resolves
   * then, or at once if the file of the database is lost.
   */
  leave(): Promise<void>;
  /**
   * A2: stops the server. Health is NOT_SERVING first. Open appends commit and ack, then all streams end with
   * SERVER_DRAINING. Open calls may end within `drainSeconds`; then the store is closed. Idempotent; never rejects.
   */
  drain(): Promise<void>;
}

export interface ServerCounts extends PortCounts {
  /** Running handlers of RPCs. */
  readonly handlers: number;
  /** Followers that wait for changes. */
  readonly followers: number;
  /** Memory of steps that are not stored yet, estimated. */
  readonly waitingBytes: number;
  /** Principals with open calls. */
  readonly principals: number;
}

/** Milliseconds that the store may take to close if the database does not answer. */
const CLOSE_MS = 3_000;
/** Least milliseconds between two counts of rollouts for metrics, and between two looks at the size of the database. */
const COUNT_MS = 5_000;
const SIZE_MS = 60_000;
/** Least milliseconds between two questions to the database whether this instance is ready. */
const READY_MS = 1_000;
/** More than the systems that ask for metrics need. */
const METRICS_CONNECTIONS = 50;
/** Milliseconds that open calls may take to end after the loss of the database's file. Their writes fail at once. */
const LOST_DRAIN_MS = 1_000;

/**
 * Opens the store, migrates its schema or waits for that, and listens. Errors: StartError; AbortError if the wait was
 * ended.
 */
export async function startServer(config: Config, deps: ServerDeps): Promise<RunningServer> {
  return serveStore(await (config.noMigrate ? openMigrated(config, deps) : open(config, deps.logger)), config, deps);
}

/** Opens the store when another process has migrated its schema. Until then, the port answers that it is not ready. */
async function openMigrated(
  config: Config,
  { logger, signal = new AbortController().signal }: ServerDeps,
): Promise<Store> {
  const port = waitingPort(config, logger);
  try {
    return await open(config, logger, {
      signal,
      onWait: async () => {
        logger.warn('the schema is not of this version: waits for `anabranch migrate`, and is not ready');
        await port.listen();
      },
    });
  } catch (error) {
    throw error instanceof ListenError ? new StartError(error.message, { cause: error }) : error;
  } finally {
    await port.drain(0);
  }
}

/** Answers like a server that lives and is not ready. */
function waitingPort(config: Config, logger: Logger): Port {
  return new Port({
    ...config.listen,
    tls: config.tls && tlsOptions(config.tls, logger),
    handler: (request, response) => {
      const text = { 'content-type': 'text/plain; charset=utf-8' };
      if (pathOf(request) === '/livez') answer(response, 200, text, 'ok\n');
      else answer(response, 503, text, 'The server waits for its schema.\n');
    },
    maxMessageBytes: 0,
    maxStreams: LIMITS.streamsPerConnection,
    isProbe: () => true,
    limits: { maxConnections: config.maxConnections },
    onError: (error) => logger.error({ err: error }, 'a connection failed because of an internal error'),
  });
}

/** Listens with an open store. The store is closed when the server is drained or cannot listen. Errors: StartError. */
export async function serveStore(
  store: Store,
  config: Config,
  { logger, settings, portLimits, identityTimes, processMetrics, tracing, validator }: ServerDeps,
): Promise<RunningServer> {
  const commitsAtOnce = config.database.engine === 'sqlite' ? 1 : 2;
  const database = databaseParts(config, store);
  const verifiers = await verifiersOf(config, logger, identityTimes).catch(async (error: unknown) => {
    await store.close();
    throw error;
  });
  const measured = {
    version: packageVersion(),
    engine: config.database.engine,
    levels: () => levelsOf(app, port, service),
    load: () => store.load(),
    work: new Sampled(() => store.countWork(), { everyMs: COUNT_MS, pausePerWork: 50 }),
    storedBytes: new Sampled(async () => Number((await database.sizeOf()).bytes), {
      everyMs: SIZE_MS,
      pausePerWork: 50,
    }),
  };
  const metrics = new Metrics(measured, processMetrics);
  const app = createApp({
    store,
    file: database.file,
    ids: pooledIds(),
    verifiers,
    logger,
    meter: metrics,
    tracing,
    settings: {
      stateTtlHours: config.stateTtlHours,
      commitsAtOnce,
      // One process uses an SQLite file.
      ...(config.database.engine === 'sqlite' ? { jobLeaseMs: 0 } : {}),
      // A smaller heap than that of most machines holds fewer steps.
      waitingBytes: Math.min(LIMITS.waitingBytes, Math.floor(HEAP_BYTES / 8)),
      authenticated: config.authenticated,
      ...settings,
      ...(config.retentionPolicies ? {} : { retentionMs: 0 }),
    },
  });
  const { maxConnections } = config;
  const { stateTtlHours, requestDays, waitingBytes } = app.settings;
  // A decoded value takes up to 1 KiB, and a message at most a quarter of the heap.
  const messageValues = Math.min(LIMITS.messageValues, Math.floor(HEAP_BYTES / 4096));
  const info = {
    version: packageVersion(),
    limits: { ...LIMITS, messageValues, waitingBytes, maxConnections, stateTtlHours, requestDays },
  };
  const ready = new Sampled(() => store.ping().then(() => true), { everyMs: READY_MS });
  const isStoreReady = async () => {
    await ready.refresh();
    return ready.value === true && !ready.isLate;
  };
  const service = createHandler({ app, logger, info, database, isStoreReady, metrics, validator });
  const { lost } = store;
  if (lost !== undefined)
    void aborted(lost).then(() => {
      service.health.stop();
      logger.error((lost.reason as StorageLost).detail);
    });
  const page = config.page === 'off' ? undefined : servePage(config.page, service.unsent);
  const port = new Port({
    ...config.listen,
    tls: config.tls && tlsOptions(config.tls, logger),
    handler: (request, response, intake) => {
      if (page?.(request, response) !== true) service.handle(request, response, intake);
    },
    streamHandlerOf: service.streamHandlerOf,
    maxMessageBytes: LIMITS.messageBytes,
    maxStreams: LIMITS.streamsPerConnection,
    unusedMs: config.exitWhenUnused && config.exitWhenUnused * 1000,
    allowedHosts: isLocal(config.listen) ? config.allowedHosts : undefined,
    allowedOrigins: config.allowedOrigins,
    isPage,
    isProbe: service.isProbe,
    limits: {
      maxConnections: config.maxConnections,
      connectionsPerAddress: app.credentials && LIMITS.connectionsPerAddress,
      messageMs: LIMITS.messageMs,
      unfinishedBytesPerConnection: LIMITS.unfinishedBytesPerConnection,
      unfinishedBytes: LIMITS.unfinishedBytes,
      ...portLimits,
    },
    whenFull: {
      isHealthCheck: service.isHealthCheck,
      refuse: refuseForRoom,
      warn: (crowding) =>
        logger.warn(
          { ...crowding, maxConnections: config.maxConnections },
          'too many connections: closed the longest idle ones, and refused new ones where none was idle',
        ),
    },
    onError: (error) => logger.error({ err: error }, 'a connection failed because of an internal error'),
  });
  const metricsPort = config.metricsListen && metricsPortOf(config.metricsListen, metrics, logger);
  try {
    if (config.adminKeyFile !== undefined) await ensureAdminKey(store, config.adminKeyFile, app.ids.uuid());
    if (app.credentials !== undefined && verifiers === undefined) await warnWithoutKeys(store, logger);
    const ofMetrics = await metricsPort?.listen();
    const listening = await port.listen();
    database.file?.announce(urlOf(config, listening.port));
    const parts = { store, app, verifiers, service, port, metricsPort, logger };
    return runningServer(config, parts, listening, ofMetrics);
  } catch (error) {
    verifiers?.stop();
    await metricsPort?.drain(0);
    await app.close();
    await store.close();
    throw error instanceof ListenError ? new StartError(error.message, { cause: error }) : error;
  }
}

/** Without a key, nobody can call, not even to create one. */
async function warnWithoutKeys(store: Store, logger: Logger): Promise<void> {
  const keys = await store.listKeys({ limit: 1, after: undefined });
  if (keys.length > 0) return;
  logger.warn(
    'callers need an API key, and there is none: stop the server and run `anabranch keys create NAME --role admin --database URL`, or start it with --admin-key-file FILE',
  );
}

/** Undefined: only API keys are accepted. Errors: StartError. */
async function verifiersOf(
  { identity }: Config,
  logger: Logger,
  times: Partial<IdentityTimes> | undefined,
): Promise<OpenVerifiers | undefined> {
  if (identity === undefined) return undefined;
  const mapping = {
    using: () => logger.info('uses the mapping of tokens and client certificates'),
    refused: (reason: string) => logger.warn(`the mapping in use stays, because the file cannot replace it: ${reason}`),
  };
  const keys = {
    using: ({ size }: { readonly size: number }) =>
      logger.info({ keys: size }, 'uses the keys of the issuer of tokens'),
    failed: (reason: string) => logger.warn(`the keys of the issuer of tokens could not be renewed: ${reason}`),
  };
  return openVerifiers(identity, { mapping, keys }, times).catch((error: Error) => {
    throw new StartError(error.message, { cause: error });
  });
}

/** Serves nothing but the metrics. */
function metricsPortOf(address: NonNullable<Config['metricsListen']>, metrics: Metrics, logger: Logger): Port {
  return new Port({
    ...address,
    handler: (request, response) => {
      if (pathOf(request) === '/metrics') void sendMetrics(metrics, request, response);
      else answer(response, 404, { 'content-type': 'text/plain; charset=utf-8' }, 'Metrics are at /metrics.\n');
    },
    maxMessageBytes: 0,
    maxStreams: LIMITS.streamsPerConnection,
    allowedHosts: isLocal(address) ? [] : undefined,
    allowedOrigins: [],
    limits: { maxConnections: METRICS_CONNECTIONS },
    onError: (error) => logger.error({ err: error }, 'a request for metrics failed because of an internal error'),
  });
}

function levelsOf(app: App, port: Port, service: ServiceHandler): Levels {
  const { sockets, requests } = port.counts();
  return {
    calls: service.calls.running,
    connections: sockets,
    streams: requests,
    followers: app.feeds.followers,
    followersLag: app.feeds.lag,
    watchers: app.waits.watchers,
    waitingClaims: app.waits.claims,
    unackedBytes: app.waiting.bytes,
    unmergedBytes: app.merging.bytes,
    unmergedTrajectories: app.merging.trajectories,
    ackedSteps: app.committer.storedSteps,
    ackedBytes: app.committer.storedBytes,
  };
}

function tlsOptions(files: NonNullable<Config['tls']>, logger: Logger): TlsOptions {
  return {
    ...files,
    using: (certificate) => logger.info({ ...certificate }, 'uses the certificate'),
    refused: (reason) => logger.warn(`the certificate in use stays, because the files cannot replace it: ${reason}`),
    failed: (handshakes) => logger.warn({ ...handshakes }, 'TLS handshakes failed'),
  };
}

function databaseParts(
  { database }: Config,
  store: Store,
): HandlerDeps['database'] & { readonly file: SqliteFile | undefined } {
  if (database.engine === 'postgres') return { sizeOf: () => sizeOfSchema(database.url), file: undefined };
  const file = new SqliteFile(database.path, store);
  return { sizeOf: () => file.size(), file };
}

/** Migrates the schema without serving. Returns the store's description. Errors: StartError. */
export async function migrateStore(config: Config, { logger }: ServerDeps): Promise<{ storeDescription: string }> {
  const store = await open(config, logger);
  await store.close();
  return { storeDescription: describeDatabase(config) };
}

/** V1: verifies a database that no server uses. Migrates its schema. Errors: StartError. */
export async function* verifyStore(
  config: Config,
  { logger }: ServerDeps,
): AsyncGenerator<VerificationProgress, void, undefined> {
  const store = await open(config, logger);
  try {
    yield* store.verify();
  } finally {
    await store.close();
  }
}

/**
 * V7: copies namespaces of a database into another one, and compares each trajectory with its copy. Default: all that
 * have data. Errors: StartError.
 */
export async function* copyDatabase(
  from: Config,
  to: Config,
  { logger, namespaces = [] }: ServerDeps & { readonly namespaces?: readonly string[] | undefined },
): AsyncGenerator<CopyProgress, void, undefined> {
  const source = await open(from, logger);
  try {
    const there = await source.listNamespaces();
    const missing = namespaces.find((each) => !there.includes(each));
    if (missing !== undefined) throw new StartError(`--namespace is "${missing}": the database has no such namespace.`);
    const target = await open(to, logger);
    try {
      yield* copyStore(source, target, namespaces.length === 0 ? there : [...new Set(namespaces)]);
    } catch (error) {
      // For example, the target is full or read-only.
      throw error instanceof AnabranchError ? new StartError(error.message, { cause: error }) : error;
    } finally {
      await target.close();
    }
  } finally {
    await source.close();
  }
}

/** V3: rewrites a file that no server uses, without free space. Errors: StartError. */
export function compactDatabase(path: string): { readonly before: number; readonly after: number } {
  try {
    return compact(path);
  } catch (error) {
    throw asStartError(error);
  }
}

/** V3: deletes everything in a database that no server uses. Errors: StartError. */
export async function deleteDatabase({ database }: Config): Promise<void> {
  try {
    if (database.engine === 'sqlite') deleteFile(database.path);
    else await dropSchema(database.url);
  } catch (error) {
    throw asStartError(error);
  }
}

function asStartError(error: unknown): unknown {
  return error instanceof StoreOpenError ? new StartError(error.message, { cause: error }) : error;
}

async function open(config: Config, logger: Logger, waiting?: StoreDeps['waiting']): Promise<Store> {
  const { database, databaseChosenBy, poolSize, namedStatements, stateCacheMib } = config;
  try {
    return await openStore(database.engine === 'sqlite' ? database : { ...database, poolSize, namedStatements }, {
      logger,
      stateCacheBytes: stateCacheMib * 1024 * 1024,
      waiting,
    });
  } catch (error) {
    if (!(error instanceof StoreOpenError)) throw error;
    throw new StartError(`${error.message} (The database was chosen by ${databaseChosenBy}.)`, { cause: error });
  }
}

interface Parts {
  readonly store: Store;
  readonly app: App;
  readonly verifiers: OpenVerifiers | undefined;
  readonly service: ServiceHandler;
  readonly port: Port;
  readonly metricsPort: Port | undefined;
  readonly logger: Logger;
}

function runningServer(
  config: Config,
  parts: Parts,
  { host, port: number }: Listening,
  ofMetrics: Listening | undefined,
): RunningServer {
  const { store, app, verifiers, service, port } = parts;
  let drained: Promise<void> | undefined;
  return {
    host,
    port: number,
    url: urlOf(config, number),
    metricsUrl: ofMetrics && `${urlOf({ listen: ofMetrics, tls: undefined }, ofMetrics.port)}/metrics`,
    storeDescription: describeDatabase(config),
    lost: store.lost,
    unused: port.unused,
    counts: () => ({
      ...port.counts(),
      handlers: service.calls.running,
      followers: app.feeds.followers,
      waitingBytes: app.waiting.bytes,
      principals: app.principals.size,
    }),
    reload: async () => {
      await Promise.all([config.tls && port.reload(), verifiers?.reload()]);
    },
    leave: async () => {
      service.health.leave();
      const given = store.lost && { signal: store.lost };
      await wait(config.lameDuckSeconds * 1000, undefined, given).catch(() => undefined);
    },
    drain: () => {
      drained ??= drain(config, parts);
      return drained;
    },
  };
}

async function drain(config: Config, parts: Parts): Promise<void> {
  const { store, app, verifiers, service, port, metricsPort, logger } = parts;
  service.health.stop();
  verifiers?.stop();
  app.drain.begin();
  await port.drain(store.lost?.aborted === true ? LOST_DRAIN_MS : config.drainSeconds * 1000);
  await metricsPort?.drain(0);
  const closing = app
    .close()
    .then(() => store.close())
    .catch((error: unknown) => logger.error({ err: error }, 'the store could not be closed'));
  const patience = new AbortController();
  await Promise.race([closing, wait(CLOSE_MS, undefined, { signal: patience.signal }).catch(() => undefined)]);
  patience.abort();
}

/** Returns the maker of ids. To ask the system for the random bytes of each id costs 3 % of the CPU of a claim. */
function pooledIds(): Ids {
  const pool = new Uint8Array(4096);
  let used = pool.length;
  const rng = () => {
    if (used === pool.length) {
      randomFillSync(pool);
      used = 0;
    }
    used += 16;
    return pool.subarray(used - 16, used);
  };
  return { uuid: () => v7({ rng }), uid: randomUUID };
}
