import type { Kysely } from 'kysely';

/** One change of the schema in the SQL of both engines. Semicolons at line ends separate statements. */
export interface MigrationText {
  /** Number and name. Migrations run in the order of their names, and are never renamed or edited after a release. */
  readonly name: string;
  readonly postgres: string;
  readonly sqlite: string;
}

/** A change that also converts rows. */
export interface Migration extends MigrationText {
  /** Runs after the statements, in the same transaction. */
  readonly convert?: <T>(db: Kysely<T>) => Promise<void>;
  /** Runs in transactions of its own, after all migrations, so it writes rows of the latest schema. */
  readonly conversion?: Conversion;
}

/**
 * Bounded transactions. Their progress is stored in the table `conversion`, which exists until the last one has
 * committed, so that a conversion continues after an interruption.
 */
export interface Conversion {
  /** Converts the next rows. Returns undefined if none is left. */
  readonly convertSome: <T>(db: Kysely<T>, engine: 'postgres' | 'sqlite') => Promise<ConversionProgress | undefined>;
  /** Statements of the last transaction, separated by semicolons. They drop `conversion`. */
  readonly end: string;
}

export interface ConversionProgress {
  readonly rows: 'chunks' | 'steps' | 'states';
  readonly done: bigint;
  readonly total: bigint;
}
