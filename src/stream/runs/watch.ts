import type { Caller } from '../../domain/caller.ts';
import { AnabranchError } from '../../domain/errors.ts';
import { isTerminal } from '../../domain/lifecycle.ts';
import type { Run } from '../../domain/run.ts';
import type { Horizon } from '../../store/contract/run.ts';
import type { App } from '../app.ts';
import { findRun } from '../find.ts';
import type { Subject } from '../watch.ts';
import { type RunFollower, runDeleted } from './run_feed.ts';
import { KnownRun, NO_NEWS, type RunNews } from './run_news.ts';
import { SeriesHints } from './series_hints.ts';
import { KnownRows, readChangedRows } from './watch_rollouts.ts';
import { KnownSeries } from './watch_series.ts';

export interface WatchedRunArgs {
  readonly runId: string;
  /** Includes terminal stages in the snapshot. */
  readonly allStages: boolean;
  /** Ends after the look that shows the run as terminal. */
  readonly untilTerminal: boolean;
  /** Includes groups and rollouts. */
  readonly rollouts?: boolean;
  /** Includes metric series. */
  readonly series?: boolean;
}

/** A watched run (M5). All its watchers share the looks at it, apart from those at its series. Errors: RUN_DELETED. */
export class WatchedRun implements Subject<RunNews> {
  readonly #app: App;
  readonly #caller: Caller;
  readonly #run: Pick<Run, 'id' | 'key'>;
  readonly #args: WatchedRunArgs;
  readonly #series: KnownSeries;
  /** Undefined: metric series are not watched. */
  readonly #hints: SeriesHints | undefined;
  #follower: RunFollower | undefined;
  /** What this watcher has read for itself. The next shared look can repeat it. */
  #rows: KnownRows | undefined;
  /** Of the previous look. */
  #since: Horizon | undefined;
  #isTerminal = false;

  /** Errors: RUN_NOT_FOUND. */
  static async open(app: App, caller: Caller, args: WatchedRunArgs): Promise<WatchedRun> {
    return new WatchedRun(app, caller, await findRun(app, caller, args.runId), args);
  }

  private constructor(app: App, caller: Caller, run: Pick<Run, 'id' | 'key'>, args: WatchedRunArgs) {
    this.#app = app;
    this.#caller = caller;
    this.#run = run;
    this.#args = args;
    this.#series = new KnownSeries(app.store, caller.namespace, run.id);
    this.#hints = args.series ? new SeriesHints() : undefined;
  }

  subscribe(listener: () => void): () => void {
    const { changes, runFeeds } = this.#app;
    const { rollouts = false } = this.#args;
    const follower = runFeeds.join(this.#caller.namespace, this.#run, rollouts, listener);
    this.#follower = follower;
    const stops = [() => follower.leave()];
    const hints = this.#hints;
    if (hints !== undefined) {
      const stopSeries = changes.onSeries(this.#run.id, (change) => {
        hints.add(change);
        listener();
      });
      const stopPolls = changes.onPoll(() => {
        hints.poll();
        listener();
      });
      stops.push(stopSeries, stopPolls);
    }
    return () => {
      for (const stop of stops) stop();
    };
  }

  async *look(): AsyncGenerator<RunNews, void, undefined> {
    const isSnapshot = this.#since === undefined;
    // Subscribed before the first look.
    const follower = this.#follower!;
    for (const { own, rows, horizon, isTerminal } of follower.take()) {
      yield* own;
      if (follower.wantsRows) yield* this.#newRows(rows);
      this.#since = horizon;
      this.#isTerminal = isTerminal;
    }
    if (follower.isBehind) yield* this.#read(follower);
    if (this.#hints === undefined) return;
    const looked = unlessDeleted(this.#series.look(this.#hints.take(), isSnapshot), this.#run.id);
    for await (const series of looked) yield { ...NO_NEWS, series };
  }

  async *#newRows(all: readonly RunNews[]): AsyncGenerator<RunNews, void, undefined> {
    const known = this.#rows;
    this.#rows = undefined;
    if (known === undefined) yield* all;
    else for await (const some of known.news(all)) yield { ...NO_NEWS, ...some };
  }

  /** Reads what changed since the previous look, or a snapshot. */
  async *#read(follower: RunFollower): AsyncGenerator<RunNews, void, undefined> {
    const { id, key } = this.#run;
    const { store } = this.#app;
    const { namespace } = this.#caller;
    const since = this.#since;
    const read = await follower.catchUp(async () => {
      const found = await store.readRunChanges(namespace, id, since, this.#args.allStages);
      if (found?.run.key !== key) throw runDeleted(id);
      return found;
    });
    yield* new KnownRun().news(read);
    if (follower.wantsRows) {
      const rows = new KnownRows();
      const where = { since: read.since, allStages: this.#args.allStages || since !== undefined };
      const changed = readChangedRows(store, namespace, key, where);
      for await (const some of rows.news(changed)) yield { ...NO_NEWS, ...some };
      this.#rows = rows;
    }
    this.#since = read.horizon;
    this.#isTerminal = isTerminal(read.run.status);
  }

  hasEnded(): boolean {
    return this.#args.untilTerminal && this.#isTerminal;
  }
}

/** A run that is deleted during a look is not found any more. */
async function* unlessDeleted<T>(read: AsyncIterable<T>, runId: string): AsyncGenerator<T, void, undefined> {
  try {
    yield* read;
  } catch (error) {
    throw error instanceof AnabranchError && error.reason === 'RUN_NOT_FOUND' ? runDeleted(runId) : error;
  }
}
