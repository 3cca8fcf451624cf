import { DatabaseSync, type SQLInputValue, type StatementSync } from 'node:sqlite';
import type { SqliteDatabase } from 'kysely';
import { formatInstant } from '../../domain/instant.ts';
import { StoreOpenError } from '../contract/store.ts';
import { markAsOurs } from '../file_guard/file_owner.ts';
import { type Identity, leadsTo } from '../file_guard/identity.ts';
import type { Durations, StatementTimes } from '../sql/kit/statement_times.ts';
import { translateError } from './errors.ts';

/** Safety bound on the prepared statements per connection; their real number is smaller. */
const MAX_STATEMENTS = 500;

/** A connection to the file: `node:sqlite` with cached statements, integers as bigint, and translated errors. */
export class Connection implements SqliteDatabase {
  readonly #database: DatabaseSync;
  readonly #times: StatementTimes | undefined;
  readonly #statements = {
    objects: new Map<string, KeptStatement>(),
    arrays: new Map<string, KeptStatement>(),
    'exact arrays': new Map<string, KeptStatement>(),
  };

  /** `times`: where durations of statements are noted. Default: nowhere. */
  constructor(database: DatabaseSync, times?: StatementTimes) {
    this.#database = database;
    this.#times = times;
  }

  prepare(text: string, rows: RowForm = 'objects'): KeptStatement {
    const statements = this.#statements[rows];
    let statement = statements.get(text);
    if (statement === undefined) {
      if (statements.size >= MAX_STATEMENTS) statements.clear();
      statement = new KeptStatement(this.#database, text, rows, this.#times?.of(text));
      statements.set(text, statement);
    }
    return statement;
  }

  /** Adds an SQL function of one integer to this connection. */
  define(name: string, call: (value: bigint) => null): void {
    this.#database.function(name, { useBigIntArguments: true }, (value) => call(value as bigint));
  }

  close(): void {
    for (const statements of Object.values(this.#statements)) statements.clear();
    this.#database.close();
  }
}

/** `objects` and `exact arrays` have integers as bigint, `arrays` as numbers. */
type RowForm = 'objects' | 'arrays' | 'exact arrays';

/** A prepared statement with the interface of Kysely. Hot paths use it directly. */
export class KeptStatement {
  readonly columns: readonly string[];
  readonly reader: boolean;
  readonly #statement: StatementSync;
  readonly #endsTransaction: boolean;
  readonly #durations: Durations | undefined;

  constructor(database: DatabaseSync, text: string, rows: RowForm, durations: Durations | undefined) {
    this.#durations = durations;
    try {
      this.#statement = database.prepare(text === 'begin' ? 'begin immediate' : text);
    } catch (error) {
      throw translateError(error);
    }
    this.#statement.setReadBigInts(rows !== 'arrays');
    this.#statement.setReturnArrays(rows !== 'objects');
    this.columns = this.#statement.columns().map(({ name }) => name);
    this.reader = this.columns.length > 0;
    this.#endsTransaction = text === 'rollback';
  }

  all(parameters: readonly unknown[]): unknown[] {
    const begun = this.#durations === undefined ? 0 : performance.now();
    try {
      return this.#statement.all(...(parameters as SQLInputValue[]));
    } catch (error) {
      throw translateError(error);
    } finally {
      this.#durations?.note(performance.now() - begun);
    }
  }

  run(parameters: readonly unknown[]): { changes: bigint | number; lastInsertRowid: bigint | number } {
    const begun = this.#durations === undefined ? 0 : performance.now();
    try {
      return this.#statement.run(...(parameters as SQLInputValue[]));
    } catch (error) {
      // There may be nothing to roll back: a full disk ends the transaction, and a locked file prevents its begin.
      if (this.#endsTransaction) return { changes: 0, lastInsertRowid: 0 };
      throw translateError(error);
    } finally {
      this.#durations?.note(performance.now() - begun);
    }
  }

  *iterate(parameters: readonly unknown[]): IterableIterator<unknown> {
    yield* this.#statement.iterate(...(parameters as SQLInputValue[]));
  }
}

/** SQL function that returns the time on the writing connection. */
export const CLOCK = 'anabranch_now';

/** A clock that was set back by more nanoseconds is followed, because its times were wrong before. */
const MOST_AHEAD = 1_000_000_000n;

/**
 * Returns times with six fractional digits. They strictly rise unless the clock is set back, so that the order of
 * commit times is the order of commits.
 */
function commitClock(): () => string {
  let last = 0n;
  return () => {
    const now = BigInt(Date.now()) * 1_000_000n;
    last = now > last || last - now > MOST_AHEAD ? now : last + 1000n;
    return formatInstant(last, 6);
  };
}

/**
 * Opens the file for writing, durable against power loss (D1). WAL and FULL are checked on every open, because a file
 * can keep other settings.
 */
export function openWriter(path: string): DatabaseSync {
  const database = new DatabaseSync(path, { timeout: 5000 });
  markAsOurs(database);
  database.exec(`
    pragma journal_mode = wal;
    pragma synchronous = full;
    pragma fullfsync = on; pragma checkpoint_fullfsync = on;
    pragma cache_size = -65536;
    pragma wal_autocheckpoint = 4000;
    pragma journal_size_limit = 67108864;
  `);
  database.function(CLOCK, { useBigIntArguments: true }, commitClock());
  const mode = database.prepare('pragma journal_mode').get()?.journal_mode;
  const synchronous = database.prepare('pragma synchronous').get()?.synchronous;
  if (mode !== 'wal' || synchronous !== 2) {
    database.close();
    throw new StoreOpenError(
      `${path} cannot be made durable (journal_mode ${String(mode)}, synchronous ${String(synchronous)}; wanted wal and 2): put it on a local disk, not on a network file system or in memory.`,
    );
  }
  return database;
}

/**
 * Opens the file for copying its log into it. What is copied is durable before the log may be overwritten (D1).
 * `identity`: see `openReader`.
 */
export function openCopier(path: string, identity?: Identity): DatabaseSync {
  const database = openSame(path, identity);
  database.exec(`
    pragma synchronous = full;
    pragma fullfsync = on; pragma checkpoint_fullfsync = on;
  `);
  return database;
}

/**
 * Opens the file for reading. The connection sees committed rows only. Throws if `identity` is given and the path now
 * leads to another file (D7): SQLite would apply the log of the lost file to it.
 */
export function openReader(path: string, identity?: Identity): DatabaseSync {
  const database = openSame(path, identity, { readOnly: true });
  addAggregates(database);
  database.exec('pragma cache_size = -65536; pragma temp_store = memory;');
  return database;
}

function openSame(path: string, identity: Identity | undefined, options = {}): DatabaseSync {
  const database = new DatabaseSync(path, { timeout: 5000, ...options });
  if (identity === undefined || leadsTo(path, identity)) return database;
  database.close();
  throw new Error('the file of the database was replaced');
}

/** SQL function that returns the sum of squared deviations from the mean. */
export const SQUARES = 'anabranch_squares';

/**
 * Adds the aggregate for variances, which SQLite lacks. Uses Welford's moving mean over the differences from the first
 * value, so that large values close to each other lose no precision.
 */
export function addAggregates(database: DatabaseSync): void {
  database.aggregate<Float64Array>(SQUARES, {
    deterministic: true,
    start: () => new Float64Array(4),
    step(sums, value) {
      if (typeof value !== 'number') return sums;
      const [count = 0, mean = 0, squares = 0] = sums;
      if (count === 0) sums[3] = value;
      const from = value - (sums[3] ?? 0);
      const moved = mean + (from - mean) / (count + 1);
      sums[0] = count + 1;
      sums[1] = moved;
      sums[2] = squares + (from - mean) * (from - moved);
      return sums;
    },
    result: ([count = 0, , squares = 0]) => (count === 0 ? null : squares),
  });
}
