/** A page of rows: at most `limit`, after the given cursor (undefined: from the start). */
export interface Page<Cursor> {
  readonly limit: number;
  readonly after: Cursor | undefined;
}
