import { type DescMessage, type MessageShape, toBinary } from '@bufbuild/protobuf';
import type { Subject } from '../../stream/watch.ts';

/** A list, of which a page is watched. */
export interface WatchedList<S extends DescMessage> {
  readonly schema: S;
  /** Reads the page. */
  read(): Promise<readonly MessageShape<S>[]>;
  idOf(item: MessageShape<S>): string;
}

/** What changed in a page. */
export interface PageNews<T> {
  /** Items that are new or have changed, in the order of the page. */
  readonly changed: readonly T[];
  /** Ids of the page, if they or their order changed. */
  readonly ids: readonly string[] | undefined;
}

/** A watched page of a list (M5). Each look reads the page again, after hints that `subscribe` subscribes to. */
export function watchedPage<S extends DescMessage>(
  subscribe: (listener: () => void) => () => void,
  { schema, read, idOf }: WatchedList<S>,
): Subject<PageNews<MessageShape<S>>> {
  /** Encoded items by id, in order. Undefined before the first look. */
  let before: ReadonlyMap<string, string> | undefined;
  const textOf = (item: MessageShape<S>) => Buffer.from(toBinary(schema, item)).toString('latin1');
  return {
    subscribe,
    async *look() {
      const items = await read();
      const now = new Map(items.map((each) => [idOf(each), textOf(each)]));
      const changed = items.filter((each) => before?.get(idOf(each)) !== now.get(idOf(each)));
      const ids = [...now.keys()];
      const isSamePage = before !== undefined && [...before.keys()].join() === ids.join();
      before = now;
      if (changed.length > 0 || !isSamePage) yield { changed, ids: isSamePage ? undefined : ids };
    },
    hasEnded: () => false,
  };
}
