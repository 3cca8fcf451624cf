import { LIMITS } from '../domain/limits.ts';

/** Rows fetched at first, so that a page of large rows never stands in memory as a whole. A page of the default size takes one statement. */
const FETCH = { BASIC: 256, FULL: LIMITS.defaultPageSize + 1 };
/** Where those were small, so many times as many are fetched next. */
const MORE = 3;
/** Leaves room for what the wire adds. */
export const PAGE_BYTES = LIMITS.messageBytes - 64 * 1024;

/** What a page is gathered from. */
export interface PageSource<Row, Key = bigint> {
  /** The next rows after the given key: fewer than `limit` only at the end. */
  fetch(limit: number, after: Key | undefined): Promise<Row[]>;
  keyOf(row: Row): Key;
  /** At least what the row takes when encoded. */
  bytesOf(row: Row): number;
}

export interface GatheredPage<Row, Key = bigint> {
  readonly items: readonly Row[];
  /** Key of the last item; undefined if there are none. */
  readonly last: Key | undefined;
  readonly more: boolean;
}

/** A page of rows that fits into one message: at most `limit`, fewer where they are large, but at least one if there is one. */
export async function gatherPage<Row, Key = bigint>(
  source: PageSource<Row, Key>,
  limit: number,
  after: Key | undefined,
  view: 'BASIC' | 'FULL',
): Promise<GatheredPage<Row, Key>> {
  const items: Row[] = [];
  let bytes = 0;
  let last: Key | undefined;
  const isSmall = () => (bytes / items.length) * limit < PAGE_BYTES;
  for (;;) {
    // One more than may be shown, to know whether there is another page.
    const asked = Math.min(items.length > 0 && isSmall() ? MORE * FETCH[view] : FETCH[view], limit + 1 - items.length);
    const rows = await source.fetch(asked, last ?? after);
    for (const row of rows) {
      bytes += source.bytesOf(row);
      const full = items.length === limit || (items.length > 0 && bytes > PAGE_BYTES);
      if (full) return { items, last, more: true };
      items.push(row);
      last = source.keyOf(row);
    }
    if (rows.length < asked) return { items, last, more: false };
  }
}
