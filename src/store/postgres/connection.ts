import { createHash } from 'node:crypto';
import pg from 'pg';
import { StoreOpenError } from '../contract/store.ts';
import { SCHEMA } from './schema.ts';

/** Time limits in milliseconds. */
export interface Bounds {
  readonly statementMs: number;
  readonly lockMs: number;
}

/** How statements on a connection get their settings. */
export interface Session {
  /**
   * Behind a pooler: statements that every transaction must start with. Undefined if the connection keeps its settings.
   */
  readonly beginWith: string | undefined;
  /** Object id of the type `appended_segment`. 0 if the schema is missing. */
  readonly appendedSegment: number;
}

export type Settings = Readonly<Record<string, string>>;

type Durability = Readonly<Record<'fsync' | 'full_page_writes' | 'synchronous_commit', string>>;

/**
 * Sets everything that the store depends on: time limits, formats of values, and transaction behaviour. Defaults of a
 * role could change them.
 */
export function sessionSettings(bounds: Bounds | undefined): Settings {
  return {
    statement_timeout: `${bounds?.statementMs ?? 0}`,
    lock_timeout: `${bounds?.lockMs ?? 0}`,
    idle_in_transaction_session_timeout: "'30s'",
    timezone: "'UTC'",
    datestyle: "'ISO, YMD'",
    bytea_output: "'hex'",
    extra_float_digits: '1',
    array_nulls: 'on',
    transform_null_equals: 'off',
    // A statement gets one process of the database. Others wait less for a processor, which matters most beside writes.
    max_parallel_workers_per_gather: '0',
    // Statements are short: compiling one takes longer than running it.
    jit: 'off',
  };
}

/**
 * For connections that only append. Postgres plans a statement with arrays again for each execution if the first ones
 * had few rows, which takes longer than to run it. The plan that it keeps must suit a table that grows.
 */
export const APPEND_SETTINGS: Settings = {
  plan_cache_mode: 'force_generic_plan',
  enable_seqscan: 'off',
  enable_hashjoin: 'off',
  enable_mergejoin: 'off',
};

/**
 * Must be set before the first query of a transaction, so the session sets it. `default_transaction_read_only` is left
 * to the operator (A10).
 */
const TRANSACTION_DEFAULTS: Settings = { default_transaction_isolation: "'read committed'" };

/**
 * Applies the settings to a new connection, unless it leads to a pooler. A pooler may use another connection for each
 * transaction, and share it with other users, who must not get these settings. A pooler is recognised by its invented
 * process id.
 * Errors: StoreOpenError if commits would not be durable (D1). The defaults of a role can change at any time, so each
 * connection is checked.
 */
export async function prepareSession(client: pg.ClientBase, settings: Settings): Promise<Session> {
  const { rows } = await client.query<Durability & { pid: number; appended_segment: number }>(
    `select pg_backend_pid() as pid, coalesce(to_regtype('${SCHEMA}.appended_segment')::oid, 0) as appended_segment,
       current_setting('fsync') as fsync, current_setting('full_page_writes') as full_page_writes,
       current_setting('synchronous_commit') as synchronous_commit`,
  );
  const { pid, appended_segment: appendedSegment, ...durability } = rows[0]!;
  for (const [setting, value] of Object.entries(durability)) {
    if (value !== 'off') continue;
    throw new StoreOpenError(
      `This Postgres runs with ${setting} = off, so an acked step could be lost: set it to on (for synchronous_commit also: alter role … set synchronous_commit = on).`,
    );
  }
  if (pid !== (client as { processID?: number }).processID)
    return { beginWith: statements('set local', settings), appendedSegment };
  await client.query(statements('set', { ...settings, ...TRANSACTION_DEFAULTS }));
  return { beginWith: undefined, appendedSegment };
}

function statements(verb: 'set' | 'set local', settings: Settings): string {
  return Object.entries(settings)
    .map(([name, value]) => `${verb} ${name} = ${value}`)
    .join('; ');
}

/** Types of row values: integers are bigint, and times are text. */
export const TYPES = {
  getTypeParser(oid: number, format?: 'text' | 'binary') {
    if (oid === pg.types.builtins.INT8) return BigInt;
    if (oid === pg.types.builtins.TIMESTAMPTZ) return readTimestamp;
    return pg.types.getTypeParser(oid, format as 'text');
  },
} as pg.CustomTypesConfig;

/** Types for large results: integers are numbers, and a time that consecutive rows share is parsed once. */
export function rowTypes(): pg.CustomTypesConfig {
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

/**
 * Converts Postgres' text of a time to the store's format. The session uses UTC, but a pooler may use another time
 * zone.
 */
export function readTimestamp(text: string): string {
  const [, date, time, fraction = '', offset = '+00'] =
    /^(\S+) (\d\d:\d\d:\d\d)(?:\.(\d+))?([+-]\d\d(?::?\d\d)?)?$/.exec(text) ?? [];
  if (date === undefined || time === undefined) throw new RangeError(`not a time: ${text}`);
  const digits = fraction.padEnd(6, '0');
  if (offset === '+00') return `${date}T${time}.${digits}Z`;
  const minutes = offset.length === 3 ? `${offset}:00` : offset;
  return `${new Date(`${date}T${time}${minutes}`).toISOString().slice(0, 19)}.${digits}Z`;
}

/** Bound on the statements that get a name. Later ones are sent without name. */
const MAX_NAMES = 500;

/**
 * Names of prepared statements. A name is a hash of the text, because processes behind a pooler share connections, and
 * a name must mean the same statement for all of them.
 */
export class StatementNames {
  readonly #names = new Map<string, string>();
  readonly #suffix: string;

  /** Another suffix makes other names. */
  constructor(suffix = '') {
    this.#suffix = suffix;
  }

  /** Returns undefined if the statement must be sent without name. */
  of(text: string): string | undefined {
    const known = this.#names.get(text);
    if (known !== undefined || this.#names.size >= MAX_NAMES) return known;
    // Postgres truncates names after 63 bytes.
    const name = `anabranch_${createHash('sha256').update(text).digest('hex').slice(0, 32)}${this.#suffix}`;
    this.#names.set(text, name);
    return name;
  }
}

/** `pg` has these fields, its types do not. */
interface Connected {
  readonly connection: {
    readonly stream: {
      on(event: 'data', listener: () => void): void;
      prependListener(event: 'data', listener: () => void): void;
    };
  };
}

/**
 * Measures how long the serving thread has parsed what a connection received. The driver parses rows in a listener of
 * the socket, so the time between a listener before it and one after it is measured.
 */
export class ParseTime {
  /** Since the connection was made. */
  milliseconds = 0;

  /** The connection must be ready: a switch to TLS replaces the stream. */
  constructor(client: object) {
    const { stream } = (client as Connected).connection;
    let begun = 0;
    stream.prependListener('data', () => {
      begun = performance.now();
    });
    stream.on('data', () => {
      this.milliseconds += performance.now() - begun;
    });
  }
}
