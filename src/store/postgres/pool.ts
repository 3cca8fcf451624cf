import type { PostgresPool, PostgresPoolClient } from 'kysely';
import pg from 'pg';
import { StoreOpenError } from '../contract/store.ts';
import { type CancellableClient, requestCancel } from './cancel.ts';
import { CopyQuery } from './copy.ts';
import { translateError } from './errors.ts';
import { SilenceWatch } from './silence.ts';

/** Distinct statements that get a name per connection; later ones are sent unnamed. */
const MAX_NAMES = 500;

/**
 * Bounds in the database. `SilenceWatch` gives up sooner where nobody answers (A1). The bound of a statement ends what goes on in the
 * database after that. It is long, since Postgres counts it from the first byte of a statement: a large one takes time to arrive.
 */
const STATEMENT_MS = 30_000;
const LOCK_MS = 3000;

export interface PoolOptions {
  readonly url: string;
  readonly poolSize: number;
  readonly namedStatements: boolean;
  /** False: statements may take as long as they have to. */
  readonly bounded: boolean;
  readonly onLost: (error: Error) => void;
}

/** Row values as the store reads them: whole numbers as bigint, times as text. */
const TYPES = {
  getTypeParser(oid: number, format?: 'text' | 'binary') {
    if (oid === pg.types.builtins.INT8) return BigInt;
    if (oid === pg.types.builtins.TIMESTAMPTZ) return readTimestamp;
    return pg.types.getTypeParser(oid, format as 'text');
  },
} as pg.CustomTypesConfig;

/** Values where rows are read by the thousand: whole numbers as numbers, and a time that many rows bear is read once. */
function rowTypes(): pg.CustomTypesConfig {
  let last = { text: '', time: '' };
  const readTime = (text: string): string => {
    if (text !== last.text) last = { text, time: readTimestamp(text) };
    return last.time;
  };
  return {
    getTypeParser(oid: number, format?: 'text' | 'binary') {
      if (oid === pg.types.builtins.INT8) return readWhole;
      return oid === pg.types.builtins.TIMESTAMPTZ ? readTime : TYPES.getTypeParser(oid, format as 'text');
    },
  } as pg.CustomTypesConfig;
}

function readWhole(text: string): number {
  const number = Number(text);
  if (!Number.isSafeInteger(number)) throw new RangeError(`too large to be read as a number: ${text}`);
  return number;
}

/** Postgres' text of a time in the form that the store keeps times in; the session's zone is UTC, but a pooler may hand out another. */
export function readTimestamp(text: string): string {
  const [, date, time, fraction = '', offset = '+00'] =
    /^(\S+) (\d\d:\d\d:\d\d)(?:\.(\d+))?([+-]\d\d(?::?\d\d)?)?$/.exec(text) ?? [];
  if (date === undefined || time === undefined) throw new RangeError(`not a time: ${text}`);
  const digits = fraction.padEnd(6, '0');
  if (offset === '+00') return `${date}T${time}.${digits}Z`;
  const minutes = offset.length === 3 ? `${offset}:00` : offset;
  return `${new Date(`${date}T${time}${minutes}`).toISOString().slice(0, 19)}.${digits}Z`;
}

/** A pool that survives lost connections, names its statements, and translates errors. */
export class Pool implements PostgresPool {
  readonly options: object = {};
  private readonly pool: pg.Pool;
  private readonly names = new Map<string, string>();
  private readonly named: boolean;
  private readonly silence = new SilenceWatch();
  private readonly bounded: boolean;

  constructor({ url, poolSize, namedStatements, bounded, onLost }: PoolOptions) {
    this.named = namedStatements;
    this.bounded = bounded;
    this.pool = new pg.Pool({
      connectionString: url,
      max: poolSize,
      Client: watchedClient(this.silence),
      keepAlive: true,
      application_name: 'anabranch',
      types: TYPES,
      pipeline: true,
      // Every connection is bounded, and refused where commits would not be durable (D1): a role's default can change at any time.
      onConnect: (client: pg.ClientBase) => this.prepare(client),
    } as pg.PoolConfig);
    this.pool.on('error', onLost);
    // Without this a connection that is lost while checked out ends the process.
    this.pool.on('connect', (client) => client.on('error', onLost));
  }

  /** For Kysely, one connection a query. */
  async connect(): Promise<PostgresPoolClient> {
    const lease = await this.lease();
    return {
      processID: lease.processID,
      query: (text: unknown, values?: unknown) => lease.query(text as string, values as unknown[]),
      release: () => lease.release(),
    } as unknown as PostgresPoolClient;
  }

  /** A connection for one user, who releases it. When the signal is aborted, waiting for it and its statements end. */
  async lease(signal?: AbortSignal): Promise<Lease> {
    signal?.throwIfAborted();
    const client = await this.connected(signal);
    return new Lease(
      client,
      (text, values) => this.statement(text, values),
      signal,
      this.bounded ? this.silence : undefined,
    );
  }

  async end(): Promise<void> {
    await this.pool.end();
    this.silence.close();
  }

  /** Waits for a connection as long as the database answers anybody. If the waiting ends before, the connection is released when it arrives. */
  private connected(signal: AbortSignal | undefined): Promise<pg.PoolClient> {
    return new Promise((resolve, reject) => {
      let left = false;
      const leave = (reason: unknown) => {
        left = true;
        stopWaiting();
        reject(reason);
      };
      const onAbort = () => leave(signal?.reason);
      const endWait = this.silence.wait((silence) => leave(translateError(silence)));
      const stopWaiting = () => {
        endWait();
        signal?.removeEventListener('abort', onAbort);
      };
      signal?.addEventListener('abort', onAbort);
      this.pool.connect().then(
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

  private async prepare(client: pg.ClientBase): Promise<void> {
    try {
      await prepareSession(client, this.bounded);
    } finally {
      this.silence.unwatch(client);
    }
  }

  private statement(text: string, values: unknown[] | undefined): pg.QueryConfig {
    if (values === undefined || values.length === 0) return { text };
    let name = this.named ? this.names.get(text) : undefined;
    if (this.named && name === undefined && this.names.size < MAX_NAMES) {
      name = `a${this.names.size}`;
      this.names.set(text, name);
    }
    const config = { text, values: keepZeroSigns(values) };
    return name === undefined ? config : { name, ...config };
  }
}

/** A client that is watched while it connects; `Pool.prepare` ends that. */
function watchedClient(silence: SilenceWatch): typeof pg.Client {
  return class extends pg.Client {
    constructor(config?: string | pg.ClientConfig) {
      super(config);
      silence.watch(this);
      this.once('end', () => silence.unwatch(this));
    }
  };
}

/** Between two cancel requests: one that arrives between two statements has no effect. */
const CANCEL_AGAIN_MS = 50;

/** A connection that one user holds. Statements may be sent without waiting for the earlier ones; they run in order. */
export class Lease {
  readonly processID: number;
  private readonly client: pg.PoolClient;
  private readonly prepare: (text: string, values: unknown[] | undefined) => pg.QueryConfig;
  private readonly signal: AbortSignal | undefined;
  /** Undefined: statements may take as long as they have to. */
  private silence: SilenceWatch | undefined;
  private broken: Error | undefined;
  /** Statements that were sent and have not ended. */
  private running = 0;
  private cancelling: Promise<void> | undefined;

  /** When the signal is aborted, what runs is cancelled, and whoever waits for it gets the signal's reason. */
  constructor(
    client: pg.PoolClient,
    prepare: (text: string, values: unknown[] | undefined) => pg.QueryConfig,
    signal: AbortSignal | undefined,
    silence: SilenceWatch | undefined,
  ) {
    this.client = client;
    this.silence = silence;
    this.processID = (client as { processID?: number }).processID ?? 0;
    this.prepare = prepare;
    this.signal = signal;
    signal?.addEventListener('abort', this.onAbort);
  }

  /** Removes the time limit of the statements that follow. */
  unbound(): Promise<pg.QueryResult> {
    this.silence?.unwatch(this.client);
    this.silence = undefined;
    return this.query('set local statement_timeout = 0');
  }

  query(text: string, values?: unknown[]): Promise<pg.QueryResult> {
    return this.watch(() => this.client.query(this.prepare(text, values)));
  }

  /** Rows as arrays, whole numbers as numbers. */
  async rows(text: string, values: unknown[]): Promise<unknown[][]> {
    const query = { ...this.prepare(text, values), rowMode: 'array' as const, types: rowTypes() };
    return (await this.watch(() => this.client.query(query))).rows as unknown[][];
  }

  /** `COPY … FROM STDIN (FORMAT BINARY)`, with its rows. */
  copy(text: string, rows: Buffer): Promise<pg.QueryResult> {
    return this.watch(() => {
      const { promise, resolve, reject } = Promise.withResolvers<pg.QueryResult>();
      this.client.query(new CopyQuery(text, rows, (error, result) => (error ? reject(error) : resolve(result))));
      return promise;
    });
  }

  /** Ends the transaction without effect, also after the signal was aborted. If that fails, the connection is not used again. */
  async rollback(): Promise<void> {
    await this.cancelling; // a cancel request must not hit the rollback
    try {
      await this.send(() => this.client.query('rollback'));
    } catch (error) {
      this.broken = error as Error;
      throw error;
    }
  }

  release(): void {
    this.signal?.removeEventListener('abort', this.onAbort);
    // A cancel request that is under way must not hit the next user's statement.
    if (this.cancelling === undefined) this.client.release(this.broken);
    else void this.cancelling.then(() => this.client.release(this.broken));
  }

  private async watch(send: () => Promise<pg.QueryResult>): Promise<pg.QueryResult> {
    this.signal?.throwIfAborted();
    try {
      return await this.send(send);
    } catch (error) {
      this.signal?.throwIfAborted();
      throw error;
    }
  }

  private async send(send: () => Promise<pg.QueryResult>): Promise<pg.QueryResult> {
    if (this.running === 0) this.silence?.watch(this.client);
    this.running += 1;
    try {
      return await send();
    } catch (error) {
      // Whatever state the wire is in, a connection that failed outside SQL is not used again.
      if ((error as { severity?: string }).severity !== 'ERROR') this.broken = error as Error;
      throw translateError(error);
    } finally {
      this.running -= 1;
      if (this.running === 0) this.silence?.unwatch(this.client);
    }
  }

  private readonly onAbort = (): void => {
    this.cancelling = this.cancel();
  };

  private async cancel(): Promise<void> {
    while (this.running > 0) {
      await requestCancel(this.client as unknown as CancellableClient);
      if (this.running > 0) await new Promise((resolve) => setTimeout(resolve, CANCEL_AGAIN_MS));
    }
  }
}

/** `pg` writes numbers as `String` does, which drops the sign of zero. */
function keepZeroSigns(values: unknown[]): unknown[] {
  return values.some((value) => Object.is(value, -0))
    ? values.map((value) => (Object.is(value, -0) ? '-0' : value))
    : values;
}

async function prepareSession(client: pg.ClientBase, bounded: boolean): Promise<void> {
  // Nor is it left to a role's defaults in which form values come and how transactions see each other.
  await client.query(`set statement_timeout = ${bounded ? STATEMENT_MS : 0}; set lock_timeout = ${bounded ? LOCK_MS : 0};
    set idle_in_transaction_session_timeout = '30s'; set timezone = 'UTC'; set datestyle = 'ISO, YMD'; set bytea_output = 'hex';
    set extra_float_digits = 1; set array_nulls = on; set transform_null_equals = off; set default_transaction_isolation = 'read committed'; set default_transaction_read_only = off`);
  const { rows } = await client.query<Record<string, string>>(
    `select current_setting('fsync') as fsync, current_setting('synchronous_commit') as synchronous_commit,
       current_setting('full_page_writes') as full_page_writes`,
  );
  for (const [setting, value] of Object.entries(rows[0] ?? {})) {
    if (value !== 'off') continue;
    throw new StoreOpenError(
      `This Postgres runs with ${setting} = off, so an acked step could be lost: set it to on (for synchronous_commit also: alter role … set synchronous_commit = on).`,
    );
  }
}
