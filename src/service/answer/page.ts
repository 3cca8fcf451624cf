import { ANSWER_BYTES, LIMITS } from '../../domain/limits.ts';
import type { View } from '../../store/contract/view.ts';
import {
  cursorInt,
  makePageToken,
  type PageArgs,
  type PageOf,
  pageLimit,
  readPageToken,
} from '../request/page_token.ts';

/**
 * Rows fetched at first, so that a page of large rows is never in memory as a whole. A page of the default size
 * takes one statement.
 */
const FETCH = { BASIC: 256, FULL: LIMITS.defaultPageSize + 1 };
/** Where those were small, so many times as many are fetched next. */
const MORE = 3;

/** Rows of a store in the order of a key, and the messages that show them. */
interface ShownRows<Row, Shown, Key> {
  /** Default FULL. Rows with what can be large are fetched fewer at a time. */
  readonly view?: View;
  /** Returns the rows after the key: fewer than the limit only at the end. */
  readonly fetch: (page: { readonly limit: number; readonly after: Key | undefined }) => Promise<readonly Row[]>;
  readonly keyOf: (row: Row) => Key;
  /** Reads what a page token holds of the key. Errors: INVALID_PAGE_TOKEN. */
  readonly readKey: (cursor: readonly string[]) => Key;
  /** What a page token holds of the key. Default: the key alone. */
  readonly writeKey?: (key: Key) => readonly string[];
  readonly show: (row: Row) => Shown;
  /** At least what the message takes when it is encoded. */
  readonly bytesOf: (shown: Shown) => number;
}

/**
 * Returns a page of rows in the order of a number: at most as many as the request asks for, fewer where they do not fit
 * into one response, but at least one if there is one. Errors: INVALID_PAGE_TOKEN.
 */
export function pageOf<Row, Shown>(
  args: PageArgs,
  rows: Omit<ShownRows<Row, Shown, bigint>, 'readKey'>,
): Promise<PageOf<Shown>> {
  return pageByKey(args, { ...rows, readKey: (cursor) => cursorInt(cursor, 0) });
}

/** Returns a page as `pageOf` does, for keys that are not one number. */
export async function pageByKey<Row, Shown, Key>(
  args: PageArgs,
  { view = 'FULL', fetch, keyOf, readKey, writeKey = (key) => [`${key}`], show, bytesOf }: ShownRows<Row, Shown, Key>,
): Promise<PageOf<Shown>> {
  const cursor = readPageToken(args);
  const limit = pageLimit(args.pageSize);
  const items: Shown[] = [];
  let bytes = 0;
  let last: Key | undefined;
  const isSmall = () => (bytes / items.length) * limit < ANSWER_BYTES;
  for (let after = cursor && readKey(cursor); ; after = last) {
    // One more than may be shown, to know whether there is another page.
    const asked = Math.min(items.length > 0 && isSmall() ? MORE * FETCH[view] : FETCH[view], limit + 1 - items.length);
    const rows = await fetch({ limit: asked, after });
    for (const row of rows) {
      const shown = show(row);
      bytes += bytesOf(shown);
      const isFull = items.length === limit || (items.length > 0 && bytes > ANSWER_BYTES);
      if (isFull && last !== undefined) return { items, nextPageToken: makePageToken(args.binding, writeKey(last)) };
      items.push(shown);
      last = keyOf(row);
    }
    if (rows.length < asked) return { items, nextPageToken: '' };
  }
}
