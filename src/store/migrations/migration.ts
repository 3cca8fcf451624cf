import type { Kysely } from 'kysely';

/** One change of the schema in the SQL of both engines. Semicolons at line ends separate statements. */
export interface MigrationText {
  /** Number and name. Migrations run in the order of their names, and are never renamed or edited after a release. */
  readonly name: string;
  readonly postgres: string;
  readonly sqlite: string;
}

/** A change that also converts rows, after its statements and in the same transaction. */
export interface Migration extends MigrationText {
  readonly convert?: <T>(db: Kysely<T>) => Promise<void>;
}
