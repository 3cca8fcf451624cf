import { type DescMessage, equals, type MessageShape } from '@bufbuild/protobuf';
import { type WatchedOptions, watchedStream } from './watched_stream.ts';

/** An immutable snapshot of a page of rows. */
export interface PagePicture<Row> {
  /** The rows of the page, in order. */
  readonly rows: readonly Row[];
  /** Rows that differ from the previous picture. In the first picture, all of them. */
  readonly changed: readonly Row[];
  /** Whether rows came, went or changed their order. */
  readonly isNewPage: boolean;
}

/** A message about a page: rows that are new or changed, and the ids of the page if these or their order changed. */
interface PageMessage<Row> {
  readonly rows: readonly Row[];
  readonly ids: readonly string[] | undefined;
  readonly caughtUp: boolean;
}

/** Yields a page, and again after every change and every reconnect (rule M5). */
export async function* watchedPage<Schema extends DescMessage, Message>(
  options: WatchedOptions,
  open: (signal: AbortSignal) => AsyncIterable<Message>,
  schema: Schema,
  idOf: (row: MessageShape<Schema>) => string,
  read: (message: Message) => PageMessage<MessageShape<Schema>>,
): AsyncGenerator<PagePicture<MessageShape<Schema>>, void, undefined> {
  let known = new Map<string, MessageShape<Schema>>();
  let page: readonly string[] = [];
  const fresh = new Map<string, MessageShape<Schema>>();
  let isNewPage = true;
  let isSnapshot = true;
  const opened = (signal: AbortSignal) => {
    isSnapshot = true;
    return open(signal);
  };
  for await (const message of watchedStream(options, opened)) {
    const { rows: sent, ids, caughtUp } = read(message);
    for (const row of sent) {
      const before = known.get(idOf(row));
      if (before !== undefined && equals(schema, before, row)) continue;
      known.set(idOf(row), row);
      fresh.set(idOf(row), row);
    }
    if (ids !== undefined) {
      isNewPage ||= ids.length !== page.length || ids.some((id, i) => id !== page[i]);
      page = ids;
    }
    if (!caughtUp) continue;
    // Rows that left the page are forgotten. One that comes back is sent again.
    const rows = page.flatMap((id) => known.get(id) ?? []);
    known = new Map(rows.map((row) => [idOf(row), row]));
    const changed = [...fresh.values()].filter((row) => known.has(idOf(row)));
    if (!isSnapshot && !isNewPage && changed.length === 0) continue;
    const picture = { rows, changed, isNewPage };
    [isSnapshot, isNewPage] = [false, false];
    fresh.clear();
    yield picture;
  }
}
