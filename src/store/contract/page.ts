/** A page of at most `limit` rows after the cursor. An undefined cursor means the first page. */
export interface Page<Cursor> {
  readonly limit: number;
  readonly after: Cursor | undefined;
}
