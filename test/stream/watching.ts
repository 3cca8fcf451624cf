import type { App } from '../../src/stream/app.ts';
import { LookSchedule } from '../../src/stream/look_schedule.ts';
import { type Subject, type Told, watched } from '../../src/stream/watch.ts';

/** What a message says: the news, and whether the snapshot is complete. */
export type Shown<News> = News & Pick<Told<News>, 'caughtUp'>;

/** Watches a subject in a stream of its own. Signs of life are left out. */
export async function* watching<News>(
  app: App,
  open: () => Promise<Subject<News>>,
  signal = new AbortController().signal,
): AsyncGenerator<Shown<News>, void, undefined> {
  const schedule = new LookSchedule(app.settings);
  try {
    for await (const told of watched(app, open, { schedule, signal })) {
      schedule.sent();
      if (told !== undefined) yield { ...told.news, caughtUp: told.caughtUp };
    }
  } finally {
    schedule.stop();
  }
}
