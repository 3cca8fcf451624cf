import type { App } from '../../src/stream/app.ts';
import { type Subject, type Told, watched } from '../../src/stream/watch.ts';

/** What a message says: the news, and whether the snapshot is complete. */
export type Shown<News> = News & Pick<Told<News>, 'caughtUp'>;

/** Watches a subject. Leaves out looks that found nothing new. */
export async function* watching<News>(
  app: App,
  open: () => Promise<Subject<News>>,
  signal = new AbortController().signal,
): AsyncGenerator<Shown<News>, void, undefined> {
  for await (const told of watched(app, open, signal)) {
    if (told !== undefined) yield { ...told.news, caughtUp: told.caughtUp };
  }
}
