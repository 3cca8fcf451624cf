/** One change of the schema, in both engines' words; statements are separated by semicolons at line ends. */
export interface MigrationText {
  /** Number and name; migrations run in the order of their names. Never renamed, never edited once released. */
  readonly name: string;
  readonly postgres: string;
  readonly sqlite: string;
}
