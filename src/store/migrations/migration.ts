/** One change of the schema in the SQL of both engines. Semicolons at line ends separate statements. */
export interface MigrationText {
  /** Number and name. Migrations run in the order of their names, and are never renamed or edited after a release. */
  readonly name: string;
  readonly postgres: string;
  readonly sqlite: string;
}
