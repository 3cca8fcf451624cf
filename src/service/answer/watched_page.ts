import { type DescMessage, type MessageShape, toBinary } from '@bufbuild/protobuf';
import { LookSchedule } from '../../stream/look_schedule.ts';
import type { Call } from '../method.ts';

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

/**
 * Watches a page of a list (M5). Each hint and poll reads the page again, so no hint needs to be reliable. News without
 * a change are a sign of life.
 */
export async function* watchPage<S extends DescMessage>(
  list: WatchedList<S>,
  { app, signal }: Call,
): AsyncGenerator<PageNews<MessageShape<S>>, void, undefined> {
  const schedule = new LookSchedule(app.settings);
  // Subscribes before it reads the page, so that changes during the read cause another look.
  schedule.listen((listener) => app.changes.subscribeAll(listener), app.drain, signal);
  const known = new KnownPage(list);
  try {
    while (!signal.aborted) {
      app.drain.throwIfBegun();
      schedule.beginLook();
      const news = known.news(await list.read());
      if (news.changed.length > 0 || news.ids !== undefined || schedule.progressDue) {
        schedule.sent();
        yield news;
      }
      await schedule.nextLook();
    }
  } finally {
    schedule.stop();
  }
}

/** What the watcher has received. */
class KnownPage<S extends DescMessage> {
  readonly #list: WatchedList<S>;
  /** Encoded items by id, in order. Undefined before the first look. */
  #items: ReadonlyMap<string, string> | undefined;

  constructor(list: WatchedList<S>) {
    this.#list = list;
  }

  news(items: readonly MessageShape<S>[]): PageNews<MessageShape<S>> {
    const { idOf, schema } = this.#list;
    const textOf = (item: MessageShape<S>) => Buffer.from(toBinary(schema, item)).toString('latin1');
    const now = new Map(items.map((each) => [idOf(each), textOf(each)]));
    const before = this.#items;
    this.#items = now;
    const changed = items.filter((each) => before?.get(idOf(each)) !== now.get(idOf(each)));
    const ids = [...now.keys()];
    const isSamePage = before !== undefined && [...before.keys()].join() === ids.join();
    return { changed, ids: isSamePage ? undefined : ids };
  }
}
