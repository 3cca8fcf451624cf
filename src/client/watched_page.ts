import { type DescMessage, equals, type MessageShape } from '@bufbuild/protobuf';
import type { WatchResponse } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { type SubjectInit, type WatchCalls, type WatchedOptions, watchedStream } from './watched_stream.ts';

/** An immutable snapshot of a page of rows. */
interface PagePicture<Row> {
  /** The rows of the page, in order. */
  readonly rows: readonly Row[];
  /** Rows that differ from the previous picture. In the first picture, all of them. */
  readonly changed: readonly Row[];
  /** Whether rows came, went or changed their order. */
  readonly isNewPage: boolean;
}

/** What changed in a page: rows that are new or changed, and the ids of the page if these or their order changed. */
interface PageChanges<Row> {
  readonly rows: readonly Row[];
  readonly ids: readonly string[] | undefined;
}

/** The rows of a page, and how a response has them. */
interface PageRows<Schema extends DescMessage> {
  readonly schema: Schema;
  idOf(row: MessageShape<Schema>): string;
  changesOf(response: WatchResponse): PageChanges<MessageShape<Schema>> | undefined;
}

/** Yields a page, and again after every change and every reconnect (rule M5). */
export async function* watchedPage<Schema extends DescMessage>(
  client: WatchCalls,
  options: WatchedOptions,
  subject: SubjectInit,
  { schema, idOf, changesOf }: PageRows<Schema>,
): AsyncGenerator<PagePicture<MessageShape<Schema>>, void, undefined> {
  let known = new Map<string, MessageShape<Schema>>();
  let page: readonly string[] = [];
  const fresh = new Map<string, MessageShape<Schema>>();
  let isNewPage = true;
  let isSnapshot = true;
  const begin = () => {
    isSnapshot = true;
  };
  for await (const response of watchedStream(client, options, subject, begin)) {
    const changes = changesOf(response);
    if (changes === undefined) continue;
    const { ids } = changes;
    for (const row of changes.rows) {
      const before = known.get(idOf(row));
      if (before !== undefined && equals(schema, before, row)) continue;
      known.set(idOf(row), row);
      fresh.set(idOf(row), row);
    }
    if (ids !== undefined) {
      isNewPage ||= ids.length !== page.length || ids.some((id, i) => id !== page[i]);
      page = ids;
    }
    if (!response.caughtUp) continue;
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
