import { ANSWER_BYTES, LIMITS } from '../../domain/limits.ts';
import type { View } from '../../store/contract/request.ts';
import { type PageArgs, type PageOf, pageLimit } from '../request/page_token.ts';
import type { Cursor } from '../request/query_tokens.ts';

/** Rows of the first statement: few large rows are in memory, and one statement reads a page of the default size. */
const FETCH = { BASIC: 256, FULL: LIMITS.defaultPageSize + 1 };
/** Factor for the rows of the next statements, if the first rows were small. */
const MORE = 3;

/** How to read rows in the order of a key and to convert them to messages. */
interface ShownRows<Row, Shown, Key> {
  /** Default FULL. Fewer rows are read at a time in FULL view, because they can be large. */
  readonly view?: View;
  /** Returns the rows after the key. Fewer rows than the limit mean the end. */
  readonly fetch: (page: { readonly limit: number; readonly after: Key | undefined }) => Promise<readonly Row[]>;
  readonly keyOf: (row: Row) => Key;
  /** Reads the key from a page token. */
  readonly readKey: (cursor: Cursor) => Key;
  /** Writes the key to a page token. Default: as one text. */
  readonly writeKey?: (key: Key) => Cursor;
  readonly show: (row: Row) => Shown;
  /** Returns an upper bound of the encoded size. */
  readonly bytesOf: (shown: Shown) => number;
}

/**
 * Returns a page of rows in the order of a number. The page has at most the requested number of rows, fewer if they do
 * not fit into one response (RD3), and at least one if there is one. Errors: INVALID_PAGE_TOKEN.
 */
export function pageOf<Row, Shown>(
  args: PageArgs,
  rows: Omit<ShownRows<Row, Shown, bigint>, 'readKey'>,
): Promise<PageOf<Shown>> {
  return pageByKey(args, { ...rows, readKey: ([key]) => BigInt(key!) });
}

/** Like `pageOf`, for keys that are not a single number. */
export async function pageByKey<Row, Shown, Key>(
  { pageSize, pageToken, tokens }: PageArgs,
  { view = 'FULL', fetch, keyOf, readKey, writeKey = (key) => [`${key}`], show, bytesOf }: ShownRows<Row, Shown, Key>,
): Promise<PageOf<Shown>> {
  const begin = await tokens.open(pageToken, readKey);
  const limit = pageLimit(pageSize);
  const items: Shown[] = [];
  let bytes = 0;
  let last: Key | undefined;
  const isSmall = () => (bytes / items.length) * limit < ANSWER_BYTES;
  for (let after: Key | undefined = begin; ; after = last) {
    // Reads one row more than the page can have, which tells whether there is a next page.
    const asked = Math.min(items.length > 0 && isSmall() ? MORE * FETCH[view] : FETCH[view], limit + 1 - items.length);
    const rows = await fetch({ limit: asked, after });
    for (const row of rows) {
      const shown = show(row);
      bytes += bytesOf(shown);
      const isFull = items.length === limit || (items.length > 0 && bytes > ANSWER_BYTES);
      if (isFull && last !== undefined) return { items, nextPageToken: await tokens.seal(writeKey(last)) };
      items.push(shown);
      last = keyOf(row);
    }
    if (rows.length < asked) return { items, nextPageToken: '' };
  }
}
