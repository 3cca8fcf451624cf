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
export interface ShownRows<Row, Shown> {
  /** Default FULL. Rows with what can be large are fetched fewer at a time. */
  readonly view?: 'BASIC' | 'FULL';
  /** Returns the rows after the key: fewer than the limit only at the end. */
  readonly fetch: (page: { readonly limit: number; readonly after: bigint | undefined }) => Promise<readonly Row[]>;
  readonly keyOf: (row: Row) => bigint;
  readonly show: (row: Row) => Shown;
  /** At least what the message takes when it is encoded. */
  readonly bytesOf: (shown: Shown) => number;
}

/** Returns a page of messages, as many as fit into one response. Errors: INVALID_PAGE_TOKEN. */
export async function pageOf<Row, Shown>(
  args: PageArgs,
  { view = 'FULL', fetch, keyOf, show, bytesOf }: ShownRows<Row, Shown>,
): Promise<PageOf<Shown>> {
  const cursor = readPageToken(args);
  const { items, last, more } = await gatherPage(
    {
      fetch: async (limit, after) =>
        (await fetch({ limit, after })).map((row) => ({ key: keyOf(row), shown: show(row) })),
      keyOf: ({ key }) => key,
      bytesOf: ({ shown }) => bytesOf(shown),
    },
    pageLimit(args.pageSize),
    cursor === undefined ? undefined : cursorInt(cursor, 0),
    view,
  );
  return {
    items: items.map(({ shown }) => shown),
    nextPageToken: more ? makePageToken(args.binding, [`${last}`]) : '',
  };
}
