import type { App } from './app.ts';
import { LookSchedule } from './look_schedule.ts';

/** What is watched. Each look reads what has changed since the previous one, so no hint needs to be reliable (M5). */
export interface Subject<News> {
  /** Subscribes to hints that it may have changed. Returns a function that unsubscribes. */
  subscribe(listener: () => void): () => void;
  /** Yields the snapshot at first, then what has changed: the latest value of each row, at least once. */
  look(): AsyncIterable<News>;
  /** Whether the previous look was the last one. Throws if the subject was deleted. */
  hasEnded(): boolean;
}

export interface Told<News> {
  readonly news: News;
  /** Whether the snapshot is complete with this message or was complete before. */
  readonly caughtUp: boolean;
}

/**
 * Watches a subject until the signal is aborted: looks at it after hints, at most every `watchMs`. Yields
 * undefined after a look that found nothing new, and at ticks without a look. Errors: those of the subject,
 * SERVER_DRAINING.
 */
export async function* watched<News>(
  app: App,
  open: () => Promise<Subject<News>>,
  signal: AbortSignal,
): AsyncGenerator<Told<News> | undefined, void, undefined> {
  const subject = await open();
  const schedule = new LookSchedule(app.changes, app.settings);
  // Subscribes before it reads the snapshot, so that changes during the read cause another look.
  schedule.listen((listener) => subject.subscribe(listener), app.drain, signal);
  app.waits.watchers += 1;
  try {
    for (let isSnapshot = true; !signal.aborted; isSnapshot = false) {
      app.drain.throwIfBegun();
      schedule.beginLook();
      let last: News | undefined;
      for await (const news of subject.look()) {
        if (last !== undefined) yield { news: last, caughtUp: !isSnapshot };
        last = news;
      }
      yield last && { news: last, caughtUp: true };
      if (subject.hasEnded()) return;
      while (!(await schedule.nextLookOrTick())) yield undefined;
    }
  } finally {
    app.waits.watchers -= 1;
    schedule.stop();
  }
}
