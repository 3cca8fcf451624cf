import type { PostgresPool, PostgresPoolClient } from 'kysely';
import pg from 'pg';
import { AnabranchError, databaseReplaced } from '../../domain/errors.ts';
import { type Slot, SlotQueue } from '../../queue/slot_queue.ts';
import type { PoolLoad } from '../contract/load.ts';
import type { CallScope } from '../contract/store.ts';
import { type Trace, traced } from '../contract/trace.ts';
import { Activity, type CancellableClient, requestCancel } from '../postgres_access/beside_pool.ts';
import { type History, isSameHistory, readHistory, untoldHistory } from '../postgres_access/history.ts';
import { clientOf, type Hosts } from '../postgres_access/hosts.ts';
import { RESET_READ_ONLY } from '../postgres_access/read_only_watch.ts';
import { nameOf, StatementTimes } from '../sql/kit/statement_times.ts';
import {
  APPEND_SETTINGS,
  ParseTime,
  prepareSession,
  rowTypes,
  type Session,
  type Settings,
  StatementNames,
  sessionSettings,
  TYPES,
} from './connection.ts';
import { CopyQuery } from './copy.ts';
import { isForgottenStatement, isFull, isOutdatedStatement, isReadOnlyTransaction, translateError } from './errors.ts';
import { SilenceWatch } from './silence.ts';

/**
 * Time limits in the database. `SilenceWatch` gives up earlier if the database does not answer (A1); the limit then
 * ends the statement in the database. It is long, because Postgres counts from the first byte of a statement, and a
 * large statement takes time to arrive.
 */
const STATEMENT_MS = 30_000;
const LOCK_MS = 3000;

/** Connections for appends. They stay open for longer than others, because they have the plans of their statements. */
const APPEND_CONNECTIONS = 2;
const APPEND_IDLE_MS = 60_000;

/** For how long no further connections are tried, after Postgres has accepted no more. */
const FEWER_MS = 10_000;

export interface PoolOptions {
  readonly hosts: Hosts;
  readonly poolSize: number;
  readonly namedStatements: boolean;
  /** False: statements have no time limit. */
  readonly bounded: boolean;
  readonly onLost: (error: Error) => void;
  /** Called for each statement that is rejected because the database is read-only. */
  readonly onReadOnly?: () => void;
  /** Called once if a pooler does not keep prepared statements. Afterwards statements have no names. */
  readonly onForgotten?: (error: unknown) => void;
  /**
   * Called when Postgres accepts so many connections and no more. Callers then share these. Undefined: they fail.
   */
  readonly onFewer?: (connections: number) => void;
  /** Undefined: the history of the database is not read. */
  readonly history?: HistoryListeners;
}

export interface HistoryListeners {
  /** Called when a new connection leads to another history than the others, which are closed. */
  readonly onReplaced: (before: History, now: History) => void;
  /** Called once if the role may not read the history. */
  readonly onRefused: (error: Error) => void;
}

interface MeasuredSession extends Session {
  readonly generation: number;
  readonly parseTime: ParseTime;
}

/** A pool that survives lost connections, names its statements, and translates errors. */
export class Pool implements PostgresPool {
  readonly options: object = {};
  /** From the time when a statement is sent: those of a pipeline wait for each other. */
  readonly times = new StatementTimes();
  readonly #pool: pg.Pool;
  readonly #appends: pg.Pool;
  /** Connections of `#pool`, which serves those who wait in order of arrival. */
  readonly #turns: SlotQueue;
  readonly #sessions = new WeakMap<pg.ClientBase, MeasuredSession>();
  readonly #onForgotten: ((error: unknown) => void) | undefined;
  readonly #onReadOnly: () => void;
  readonly #silence: SilenceWatch;
  readonly #activity: Activity;
  /** Those who wait for a connection: what ends their waiting. */
  readonly #waiting = new Set<(reason: unknown) => void>();
  readonly #bounded: boolean;
  #names: StatementNames | undefined;
  readonly #onFewer: PoolOptions['onFewer'];
  readonly #hosts: Hosts;
  readonly #listeners: HistoryListeners | undefined;
  /** Connections that are in use or idle. */
  readonly #ready = new Set<pg.ClientBase>();
  /** The eras in which connections and calls began. */
  readonly #begun = new WeakMap<object, number>();
  /** Sizes that are configured. A pool has fewer connections while Postgres accepts no more. */
  readonly #sizes = new WeakMap<pg.Pool, number>();
  #history: History | undefined;
  #tellsHistory = true;
  #era = 0;
  #isPooled = false;
  /** How often sessions were renewed. */
  #generation = 0;

  constructor({
    hosts,
    history,
    poolSize,
    namedStatements,
    bounded,
    onLost,
    onForgotten,
    onFewer,
    onReadOnly = () => {},
  }: PoolOptions) {
    this.#hosts = hosts;
    this.#listeners = history;
    this.#onFewer = onFewer;
    this.#names = namedStatements ? new StatementNames() : undefined;
    this.#bounded = bounded;
    this.#activity = new Activity(hosts);
    this.#silence = new SilenceWatch((processIds) => this.#activity.findWorking(processIds));
    this.#onForgotten = onForgotten;
    this.#onReadOnly = onReadOnly;
    const Client = this.#watchedClient();
    const onLoss = (error: Error) => {
      hosts.doubt();
      // Other connections to the pooler are still open, and may lead to another database from now on.
      if (this.#isPooled) this.renew();
      onLost(error);
    };
    const poolOf = (config: pg.PoolConfig, settings: Settings = {}) => {
      const pool = new pg.Pool({
        ...config,
        Client,
        keepAlive: true,
        application_name: 'anabranch',
        types: TYPES,
        pipeline: true,
        // Checks every connection, because the defaults of a role can change at any time. Commits must be durable (D1).
        onConnect: (client: pg.ClientBase) => this.#prepare(client, settings),
      } as pg.PoolConfig);
      pool.on('error', onLoss);
      // Without this listener, a lost connection that is checked out ends the process.
      pool.on('connect', (client) => client.on('error', onLoss));
      this.#sizes.set(pool, pool.options.max);
      return pool;
    };
    // The connections to another host may lead to a primary that was replaced.
    hosts.onMoved(() => {
      this.#era += 1;
      this.#endAll();
    });
    this.#pool = poolOf({ max: poolSize });
    this.#turns = new SlotQueue(poolSize);
    this.#appends = poolOf({ max: APPEND_CONNECTIONS, idleTimeoutMillis: APPEND_IDLE_MS }, APPEND_SETTINGS);
  }

  /** For Kysely: one connection per query. */
  async connect(): Promise<PostgresPoolClient> {
    const lease = await this.lease();
    return {
      processID: lease.processID,
      query: (text: unknown, values?: unknown) => lease.query(text as string, values as unknown[]),
      release: () => lease.release(),
    } as unknown as PostgresPoolClient;
  }

  /**
   * Returns a connection, which the caller must release. Namespaces are served in turn. When the signal of the call is
   * aborted, the wait and the statements end.
   */
  async lease(call?: CallScope): Promise<Lease> {
    const turn = this.#turns.enter(1, call?.namespace);
    try {
      return await this.#leaseFrom(this.#pool, call, turn);
    } catch (error) {
      turn.end();
      throw error;
    }
  }

  /** Returns a connection that only runs the statements of appends, if Postgres accepts one. */
  async leaseForAppend(call?: CallScope): Promise<Lease> {
    try {
      return await this.#leaseFrom(this.#appends, call);
    } catch (error) {
      if (this.#onFewer === undefined || !isFull((error as Error).cause)) throw error;
      return this.lease(call);
    }
  }

  /**
   * Begins a call. If the database is replaced, it fails at its next statement: what it has read or written before,
   * such as a row key, may belong to something else in the new history.
   */
  begin(call: CallScope): void {
    this.#begun.set(call, this.#era);
  }

  /** Whether connections were found to lead to a pooler. */
  get isPooled(): boolean {
    return this.#isPooled;
  }

  /** Rises when another host or history is found. What was read in an earlier era may be untrue. */
  get era(): number {
    return this.#era;
  }

  async #leaseFrom(pool: pg.Pool, call: CallScope | undefined, turn?: Slot): Promise<Lease> {
    const signal = call?.signal;
    signal?.throwIfAborted();
    for (;;) {
      const client = await this.#connected(pool, signal, turn);
      const session = this.#sessions.get(client)!;
      if (call !== undefined && (this.#begun.get(call) ?? this.#era) !== this.#era) {
        client.release();
        throw databaseReplaced('Repeat the call.');
      }
      if (session.generation === this.#generation)
        return this.#leaseOf(client, { session, signal, turn, trace: call?.trace });
      client.release(true);
    }
  }

  /** `waitingReads`: reads that wait before they ask for a connection. */
  load(waitingReads: number): Readonly<Record<'shared' | 'appends', PoolLoad>> {
    const loadOf = ({ totalCount, idleCount, waitingCount, options }: pg.Pool): PoolLoad => ({
      used: totalCount - idleCount,
      most: options.max,
      waiting: waitingCount,
    });
    const shared = loadOf(this.#pool);
    const waiting = shared.waiting + this.#turns.waitingWeight + waitingReads;
    return { shared: { ...shared, waiting }, appends: loadOf(this.#appends) };
  }

  #leaseOf(client: pg.PoolClient, given: Pick<LeaseDeps, 'session' | 'signal' | 'turn' | 'trace'>): Lease {
    return new Lease(client, {
      ...given,
      silence: this.#bounded ? this.#silence : undefined,
      prepare: (text, values) => this.#statement(text, values),
      onReadOnly: this.#onReadOnly,
      times: this.times,
    });
  }

  /** Closes each session before its next use: what is set for a database or a role holds for new sessions only. */
  renew(): void {
    this.#generation += 1;
  }

  /** Closes idle connections and waits for the others. Callers that wait for a connection fail. */
  async end(): Promise<void> {
    for (const leave of [...this.#waiting]) leave(closing());
    await Promise.all([this.#pool.end(), this.#appends.end()]);
    this.#silence.close();
    await this.#activity.end();
  }

  /**
   * Waits for a turn and a connection as long as the database answers any connection. A connection that arrives after
   * the wait ended is released.
   */
  #connected(pool: pg.Pool, signal: AbortSignal | undefined, turn: Slot | undefined): Promise<pg.PoolClient> {
    return new Promise((resolve, reject) => {
      let left = false;
      const leave = (reason: unknown) => {
        left = true;
        stopWaiting();
        reject(reason);
      };
      const onAbort = () => leave(signal?.reason);
      const endWait = this.#silence.wait((silence) => leave(translateError(silence)));
      this.#waiting.add(leave);
      const stopWaiting = () => {
        this.#waiting.delete(leave);
        endWait();
        signal?.removeEventListener('abort', onAbort);
      };
      signal?.addEventListener('abort', onAbort);
      const connect = async () => {
        if ((await turn?.begun) === false) throw new Error('the wait has ended');
        return this.#connect(pool);
      };
      connect().then(
        (client) => {
          stopWaiting();
          if (left) client.release();
          else resolve(client);
        },
        (error: unknown) => {
          stopWaiting();
          reject(translateError(error));
        },
      );
    });
  }

  /** While Postgres accepts no more connections, waits for one of those that there are. */
  async #connect(pool: pg.Pool): Promise<pg.PoolClient> {
    for (;;) {
      try {
        if (this.#hosts.isDoubted) await this.#hosts.choose();
        return await pool.connect();
      } catch (error) {
        if (!isFull(error)) this.#hosts.doubt();
        if (this.#onFewer === undefined || !isFull(error) || pool.totalCount === 0) throw error;
        if (pool.totalCount >= pool.options.max) continue;
        pool.options.max = pool.totalCount;
        this.#onFewer(pool.totalCount);
        setTimeout(() => {
          pool.options.max = this.#sizes.get(pool)!;
        }, FEWER_MS).unref();
      }
    }
  }

  async #prepare(client: pg.ClientBase, settings: Settings): Promise<void> {
    const generation = this.#generation;
    try {
      const bounds = this.#bounded ? { statementMs: STATEMENT_MS, lockMs: LOCK_MS } : undefined;
      const [session, history] = await Promise.all([
        prepareSession(client, { ...sessionSettings(bounds), ...settings }),
        this.#readHistory(client),
      ]);
      if (history !== undefined) this.#follow(client, history);
      if (session.beginWith !== undefined) {
        // A pooler may use another connection for each transaction, and not all of them keep names.
        this.#isPooled = true;
        this.#names = undefined;
      }
      this.#sessions.set(client, { ...session, generation, parseTime: new ParseTime(client) });
      this.#ready.add(client);
      client.once('end', () => this.#ready.delete(client));
    } finally {
      this.#silence.unwatch(client);
    }
  }

  async #readHistory(client: pg.ClientBase): Promise<History | undefined> {
    if (this.#listeners === undefined) return undefined;
    if (!this.#tellsHistory) return untoldHistory(client);
    return readHistory(client, (error) => {
      if (this.#tellsHistory) this.#listeners?.onRefused(error);
      this.#tellsHistory = false;
    });
  }

  /**
   * Closes all other connections if a new one leads to another history. Statements that run on them fail, so that no
   * commit is acked that this history may lack.
   */
  #follow(client: pg.ClientBase, history: History): void {
    if (this.#begun.get(client) !== this.#era)
      throw new Error('Connection terminated: meanwhile, others have led to a database that replaces this one');
    const before = this.#history;
    this.#history = history;
    if (before === undefined || isSameHistory(before, history)) return;
    this.#era += 1;
    this.#endAll();
    this.#listeners?.onReplaced(before, history);
  }

  #endAll(): void {
    for (const client of this.#ready) endAtOnce(client, 'the database was replaced');
  }

  /** A client of the chosen host that is watched while it connects, until `#prepare` ends. */
  #watchedClient(): new (config?: pg.ClientConfig) => pg.Client {
    const silence = this.#silence;
    const begin = (client: object) => this.#begun.set(client, this.#era);
    return class extends clientOf(this.#hosts) {
      constructor(config?: pg.ClientConfig) {
        super(config);
        begin(this);
        this.on('notice', (notice) => {
          if (notice.routine === WAIT_FOR_STANDBY) endAtOnce(this, 'a commit did not wait for the standby');
        });
        silence.watch(this);
        this.once('end', () => silence.unwatch(this));
      }
    };
  }

  /**
   * Returns whether a prepared statement caused the error, so that a retry can succeed. After one that a pooler has
   * forgotten, statements have no names; after one that is older than the schema, they have other names.
   */
  forget(error: unknown): boolean {
    if (isOutdatedStatement(error)) {
      this.renew();
      // A pooler keeps its sessions.
      this.#names &&= new StatementNames(`_${this.#generation}`);
      return true;
    }
    if (!isForgottenStatement(error)) return false;
    if (this.#names !== undefined) this.#onForgotten?.(error);
    this.#names = undefined;
    return true;
  }

  #statement(text: string, values: unknown[] | undefined): pg.QueryConfig {
    if (values === undefined || values.length === 0) return { text };
    const name = this.#names?.of(text);
    const config = { text, values: keepZeroSigns(values) };
    return name === undefined ? config : { name, ...config };
  }
}

/**
 * The function of Postgres in which a commit waits for a synchronous standby. Its only notices say that the wait was
 * cancelled: the transaction is committed, and the standby may not have it. So the commit must not succeed here.
 */
const WAIT_FOR_STANDBY = 'SyncRepWaitForLSN';

/** Fails the statements of a connection, also those whose results were received and not read yet, and closes it. */
function endAtOnce(client: pg.ClientBase, why: string): void {
  const { connection } = client as unknown as { connection: Emitter & { stream: { destroy(): void } } };
  connection.emit('error', new Error(`Connection terminated: ${why}`));
  connection.stream.destroy();
}

interface Emitter {
  emit(event: 'error', error: Error): void;
}

/** Interval of cancel requests. A request that arrives between two statements has no effect. */
const CANCEL_AGAIN_MS = 50;

interface LeaseDeps {
  readonly session: MeasuredSession;
  /** When it is aborted, running statements are cancelled and reject with its reason. */
  readonly signal: AbortSignal | undefined;
  /** Ends when the connection is released. */
  readonly turn: Slot | undefined;
  /** Undefined: statements have no time limit. */
  readonly silence: SilenceWatch | undefined;
  readonly prepare: (text: string, values: unknown[] | undefined) => pg.QueryConfig;
  readonly onReadOnly: () => void;
  readonly times: StatementTimes;
  /** Undefined: statements are not traced. */
  readonly trace: Trace | undefined;
}

/** A connection with one user. Statements may be sent without waiting for earlier ones, and run in order. */
export class Lease {
  readonly processID: number;
  readonly session: Session;
  readonly #client: pg.PoolClient;
  readonly #parseTime: ParseTime;
  readonly #parsedBefore: number;
  readonly #prepare: LeaseDeps['prepare'];
  readonly #onReadOnly: () => void;
  readonly #times: StatementTimes;
  readonly #trace: Trace | undefined;
  /** Settings that every transaction must set; undefined if the connection keeps them. */
  readonly #beginWith: string | undefined;
  readonly #signal: AbortSignal | undefined;
  readonly #turn: Slot | undefined;
  #silence: SilenceWatch | undefined;
  #inTransaction = false;
  #broken: Error | undefined;
  /** Error of the first statement that failed. In a transaction, later ones fail because of it. */
  firstFailure: unknown;
  /** Number of sent statements that have not ended. */
  #running = 0;
  #cancelling: Promise<void> | undefined;

  constructor(client: pg.PoolClient, { session, signal, turn, silence, prepare, onReadOnly, times, trace }: LeaseDeps) {
    this.#times = times;
    this.#trace = trace;
    this.#client = client;
    this.session = session;
    this.#parseTime = session.parseTime;
    this.#parsedBefore = this.#parseTime.milliseconds;
    this.#silence = silence;
    this.processID = (client as { processID?: number }).processID ?? 0;
    this.#prepare = prepare;
    this.#onReadOnly = onReadOnly;
    this.#beginWith = session.beginWith;
    this.#signal = signal;
    this.#turn = turn;
    signal?.addEventListener('abort', this.#onAbort);
  }

  /** For how long results of this lease have kept the serving thread busy so far, before anybody converts them. */
  get parseMs(): number {
    return this.#parseTime.milliseconds - this.#parsedBefore;
  }

  /** Removes the time limit of the statements that follow. */
  unbound(): Promise<pg.QueryResult> {
    this.#silence?.unwatch(this.#client);
    this.#silence = undefined;
    return this.query('set local statement_timeout = 0');
  }

  query(text: string, values?: unknown[]): Promise<pg.QueryResult> {
    return this.#inItsTransaction(text, () => this.#client.query(this.#prepare(text, values)));
  }

  /** Returns rows as arrays, with integers as numbers. */
  async rows(text: string, values: unknown[]): Promise<unknown[][]> {
    const query = { ...this.#prepare(text, values), rowMode: 'array' as const, types: rowTypes() };
    return (await this.#inItsTransaction(text, () => this.#client.query(query))).rows as unknown[][];
  }

  /** Sends the statement. If every transaction must set settings, a single statement gets its own transaction. */
  #inItsTransaction(text: string, send: () => Promise<pg.QueryResult>): Promise<pg.QueryResult> {
    if (this.#beginWith === undefined) return this.#watch(text, send);
    if (isBegin(text)) {
      this.#inTransaction = true;
      return this.#watch(text, () => this.#client.query(`${text === 'begin' ? BEGIN : text}; ${this.#beginWith}`));
    }
    if (this.#inTransaction) {
      this.#inTransaction = !isEnd(text);
      return this.#watch(text, send);
    }
    const sent = [
      this.#watch(BEGIN, () => this.#client.query(`${BEGIN}; ${this.#beginWith}`)),
      this.#watch(text, send),
      this.#watch('commit', () => this.#client.query('commit')),
    ] as const;
    // Waits for all of them even if one fails, so that the connection is released after the last one.
    return Promise.allSettled(sent)
      .then(() => Promise.all(sent))
      .then(([, result]) => result);
  }

  /** Runs `COPY … FROM STDIN (FORMAT BINARY)` with its rows. */
  copy(text: string, rows: Buffer): Promise<pg.QueryResult> {
    return this.#watch(text, () => {
      const { promise, resolve, reject } = Promise.withResolvers<pg.QueryResult>();
      this.#client.query(new CopyQuery(text, rows, (error, result) => (error ? reject(error) : resolve(result))));
      return promise;
    });
  }

  /** Rolls back the transaction, even after the signal was aborted. If that fails, the connection is discarded. */
  async rollback(): Promise<void> {
    await this.#cancelling; // A cancel request must not hit the rollback.
    try {
      this.#inTransaction = false;
      await this.#send('rollback', () => this.#client.query('rollback'));
    } catch (error) {
      this.#broken = error as Error;
      throw error;
    }
  }

  release(): void {
    this.#signal?.removeEventListener('abort', this.#onAbort);
    // A pending cancel request must not hit a statement of the next user.
    if (this.#cancelling === undefined) this.#leave();
    else void this.#cancelling.then(() => this.#leave());
  }

  #leave(): void {
    this.#client.release(this.#broken);
    this.#turn?.end();
  }

  async #watch(text: string, send: () => Promise<pg.QueryResult>): Promise<pg.QueryResult> {
    this.#signal?.throwIfAborted();
    try {
      return await this.#send(text, send);
    } catch (error) {
      this.#signal?.throwIfAborted();
      throw error;
    }
  }

  #send(text: string, send: () => Promise<pg.QueryResult>): Promise<pg.QueryResult> {
    return traced(
      this.#trace,
      () => nameOf(text),
      () => this.#sendTimed(text, send),
    );
  }

  async #sendTimed(text: string, send: () => Promise<pg.QueryResult>): Promise<pg.QueryResult> {
    const begun = performance.now();
    if (this.#running === 0) this.#silence?.watch(this.#client);
    this.#running += 1;
    try {
      return await send();
    } catch (error) {
      // A connection that failed outside of SQL has an unknown state and is discarded.
      if ((error as { severity?: string }).severity !== 'ERROR') this.#broken = error as Error;
      if (isReadOnlyTransaction(error)) this.#onReadOnly();
      const translated = translateError(error);
      this.firstFailure ??= translated;
      throw translated;
    } finally {
      this.#times.note(text, performance.now() - begun);
      this.#running -= 1;
      if (this.#running === 0) this.#silence?.unwatch(this.#client);
    }
  }

  readonly #onAbort = (): void => {
    this.#cancelling = this.#cancel();
  };

  async #cancel(): Promise<void> {
    while (this.#running > 0) {
      await requestCancel(this.#client as unknown as CancellableClient);
      if (this.#running > 0) await new Promise((resolve) => setTimeout(resolve, CANCEL_AGAIN_MS));
    }
  }
}

function closing(): AnabranchError {
  return new AnabranchError(
    'DATABASE_UNAVAILABLE',
    'The server is closing its database. Nothing was stored. Retry the call.',
  );
}

/** Statement for transactions that do not state their isolation level. */
const BEGIN = `${RESET_READ_ONLY}; begin isolation level read committed`;

function isBegin(text: string): boolean {
  return /^(begin|start transaction)\b/i.test(text);
}

function isEnd(text: string): boolean {
  return /^(commit|rollback)$/i.test(text);
}

/** `pg` uses `String` for numbers, also in arrays, which drops the sign of negative zero. */
function keepZeroSigns(values: unknown[]): unknown[] {
  if (!values.some(hasNegativeZero)) return values;
  return values.map((value) => {
    if (Array.isArray(value)) return keepZeroSigns(value);
    return Object.is(value, -0) ? '-0' : value;
  });
}

function hasNegativeZero(value: unknown): boolean {
  return Array.isArray(value) ? value.some(hasNegativeZero) : Object.is(value, -0);
}
