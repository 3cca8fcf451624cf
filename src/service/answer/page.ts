import { gatherPage } from '../../app/page.ts';
import {
  cursorInt,
  makePageToken,
  type PageArgs,
  type PageOf,
  pageLimit,
  readPageToken,
} from '../../app/page_token.ts';

/** Rows of a store in the order of a key, and the messages that show them. */
interface ShownRows<Row, Shown, Key> {
  /** Default FULL. Rows with what can be large are fetched fewer at a time. */
  readonly view?: 'BASIC' | 'FULL';
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

/** Returns a page of rows that are in the order of a number, as many messages as fit into one response. Errors: INVALID_PAGE_TOKEN. */
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
  const { items, last, more } = await gatherPage<{ readonly key: Key; readonly shown: Shown }, Key>(
    {
      fetch: async (limit, after) =>
        (await fetch({ limit, after })).map((row) => ({ key: keyOf(row), shown: show(row) })),
      keyOf: ({ key }) => key,
      bytesOf: ({ shown }) => bytesOf(shown),
    },
    pageLimit(args.pageSize),
    cursor && readKey(cursor),
    view,
  );
  return {
    items: items.map(({ shown }) => shown),
    nextPageToken: more && last !== undefined ? makePageToken(args.binding, writeKey(last)) : '',
  };
}
