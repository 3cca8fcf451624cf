import type { Kysely } from 'kysely';

/**
 * One change of the schema in the SQL of both engines, in a transaction of its own. Servers of the release before serve
 * the schema meanwhile, and after it. So a migration only adds, and removes nothing but what that release does not use.
 */
export interface Migration {
  /**
   * Number, name, and the number of the newest migration that a program must know to serve the schema:
   * `0004_add_model_uri_after_0003`. Migrations run in the order of their names, and are never renamed or edited after
   * a release.
   */
  readonly name: string;
  /**
   * Statements. Each begins at the start of a line and ends with a semicolon. Its other lines are indented, or begin
   * with `)` or `end`.
   */
  readonly postgres: string;
  readonly sqlite: string;
  /** Runs after the statements. */
  readonly conversion?: Conversion;
  /** Built at the end, beside writers. Indexes of new tables are part of the statements. */
  readonly indexes?: readonly AddedIndex[];
}

export interface AddedIndex {
  readonly name: string;
  readonly table: string;
  /** What follows the name of the table: `(run, key) where run is not null`. */
  readonly keys: string;
}

/** Converts many rows in bounded transactions. After an interruption, the next start continues. */
export interface Conversion {
  /** A table that the statements of the migration create, for the progress. It exists until all rows are converted. */
  readonly progressTable: string;
  /** Converts the next rows in one transaction. Returns undefined if none is left. */
  readonly convertSome: <T>(tx: Kysely<T>, engine: 'postgres' | 'sqlite') => Promise<ConversionProgress | undefined>;
}

export interface ConversionProgress {
  /** What is converted, for example "steps". */
  readonly rows: string;
  readonly done: bigint;
  readonly total: bigint;
}
