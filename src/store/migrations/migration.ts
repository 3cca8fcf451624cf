import type { Kysely } from 'kysely';

/** One change of the schema in the SQL of both engines, in a transaction of its own. */
export interface Migration {
  /** Number and name. Migrations run in the order of their names, and are never renamed or edited after a release. */
  readonly name: string;
  /**
   * Statements. Each begins at the start of a line and ends with a semicolon. Its other lines are indented, or begin
   * with `)` or `end`.
   */
  readonly postgres: string;
  readonly sqlite: string;
  /** Runs after the statements. */
  readonly conversion?: Conversion;
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
