import { AnabranchError } from '../../domain/errors.ts';
import { isTerminal } from '../../domain/lifecycle.ts';
import type { Run } from '../../domain/run.ts';
import type { Horizon, RunChangesRead } from '../../store/contract/run.ts';
import type { Store } from '../../store/contract/store.ts';
import type { ChangeHub } from '../change_hub.ts';
import type { Drain } from '../drain.ts';
import { LookSchedule } from '../look_schedule.ts';
import type { AppSettings } from '../settings.ts';
import { KnownRun, NO_NEWS, type RunNews } from './run_news.ts';
import { KnownRows, readChangedRows } from './watch_rollouts.ts';

/** A look that finds more messages is not shared: each watcher reads them at its own pace. */
const MOST_SHARED = 32;
/** Looks that wait for a watcher. With more, it reads for itself what it has missed. */
const MOST_WAITING = 16;

interface FeedDeps {
  readonly store: Store;
  readonly changes: ChangeHub;
  readonly drain: Drain;
  readonly settings: AppSettings;
}

/** What a look at a run has found. All watchers share the objects. */
export interface RunLook {
  /** Looks of a feed are numbered in the order in which they read the run. */
  readonly number: number;
  readonly own: readonly RunNews[];
  /** Groups and rollouts, for watchers that want them. */
  readonly rows: readonly RunNews[];
  readonly horizon: Horizon;
  readonly isTerminal: boolean;
}

/** Lets all watchers of a run share its looks (M5). */
export class RunFeeds {
  readonly #deps: FeedDeps;
  readonly #feeds = new Map<bigint, RunFeed>();

  constructor(deps: FeedDeps) {
    this.#deps = deps;
  }

  /** Calls the listener when there is something to take. */
  join(namespace: string, run: Pick<Run, 'id' | 'key'>, wantsRows: boolean, listener: () => void): RunFollower {
    let feed = this.#feeds.get(run.key);
    if (feed === undefined) {
      const made = new RunFeed(this.#deps, namespace, run, () => {
        if (this.#feeds.get(run.key) === made) this.#feeds.delete(run.key);
      });
      this.#feeds.set(run.key, made);
      feed = made;
    }
    return new RunFollower(feed, wantsRows, listener);
  }
}

class RunFeed {
  readonly followers = new Set<RunFollower>();
  /** Number of looks that have begun to read the run. */
  looks = 0;
  readonly #store: Store;
  readonly #namespace: string;
  readonly #run: Pick<Run, 'id' | 'key'>;
  readonly #schedule: LookSchedule;
  readonly #end = new AbortController();
  readonly #onEnd: () => void;
  readonly #known = new KnownRun();
  #rows: KnownRows | undefined;
  /** Of the previous look. Undefined: no watcher has read the run yet. */
  #since: Horizon | undefined;
  /** Settles when all reads of the run have ended that were asked for so far. */
  #reads: Promise<unknown> = Promise.resolve();

  constructor(
    { store, changes, drain, settings }: FeedDeps,
    namespace: string,
    run: Pick<Run, 'id' | 'key'>,
    onEnd: () => void,
  ) {
    this.#store = store.within({ signal: this.#end.signal, namespace });
    this.#namespace = namespace;
    this.#run = run;
    this.#onEnd = onEnd;
    this.#schedule = new LookSchedule(changes, settings);
    this.#schedule.listen((listener) => changes.onWatchedRun(run.key, listener), drain, this.#end.signal);
  }

  /** Begins to look, from what a watcher has read. */
  start(read: RunChangesRead): void {
    if (this.#since !== undefined) return;
    this.#since = read.horizon;
    for (const _ of this.#known.news(read));
    void this.#look();
  }

  /** Reads the run once all earlier reads have ended, so that it sees what they saw. */
  readInTurn<T>(read: () => Promise<T>): Promise<T> {
    const turn = this.#reads.then(read);
    this.#reads = turn.catch(() => undefined);
    return turn;
  }

  leave(follower: RunFollower): void {
    if (this.followers.delete(follower) && this.followers.size === 0) this.#stop();
  }

  #stop(): void {
    this.#onEnd();
    this.#end.abort();
    this.#schedule.stop();
  }

  async #look(): Promise<void> {
    for (;;) {
      await this.#schedule.nextLook();
      if (this.#schedule.ended) return;
      this.#schedule.beginLook();
      try {
        const look = await this.#read();
        for (const follower of this.followers) follower.give(look);
      } catch (error) {
        // A watcher that comes later begins another feed.
        this.#onEnd();
        for (const follower of this.followers) follower.fail(error);
        return;
      }
    }
  }

  /** Returns undefined if there is too much to share. */
  async #read(): Promise<RunLook | undefined> {
    const { id, key } = this.#run;
    const wantsRows = [...this.followers].some((follower) => follower.wantsRows);
    this.#rows = wantsRows ? (this.#rows ?? new KnownRows()) : undefined;
    const read = await this.readInTurn(() => {
      this.looks += 1;
      return this.#store.readRunChanges(this.#namespace, id, this.#since, true);
    });
    if (read?.run.key !== key) throw runDeleted(id);
    const own = [...this.#known.news(read)];
    const rows: RunNews[] = [];
    this.#since = read.horizon;
    if (read.since === undefined) return undefined;
    if (this.#rows !== undefined) {
      const changed = readChangedRows(this.#store, this.#namespace, key, { since: read.since, allStages: true });
      for await (const some of this.#rows.news(changed)) {
        rows.push({ ...NO_NEWS, ...some });
        if (rows.length > MOST_SHARED) return undefined;
      }
    }
    return { number: this.looks, own, rows, horizon: read.horizon, isTerminal: isTerminal(read.run.status) };
  }
}

/** A watcher's place in the feed of a run. */
export class RunFollower {
  readonly wantsRows: boolean;
  readonly #feed: RunFeed;
  readonly #listener: () => void;
  #looks: RunLook[] = [];
  /** Looks up to this number have read the run before the watcher did for itself. */
  #from = 0;
  #isBehind = true;
  #failure: { readonly error: unknown } | undefined;

  constructor(feed: RunFeed, wantsRows: boolean, listener: () => void) {
    this.#feed = feed;
    this.wantsRows = wantsRows;
    this.#listener = listener;
    feed.followers.add(this);
  }

  /** Whether the watcher must read for itself: at first, and after it has missed a look. */
  get isBehind(): boolean {
    return this.#isBehind;
  }

  /** Has the watcher read for itself. It then gets the looks that read later. */
  catchUp(read: () => Promise<RunChangesRead>): Promise<RunChangesRead> {
    return this.#feed.readInTurn(async () => {
      this.#isBehind = false;
      this.#looks = [];
      this.#from = this.#feed.looks;
      const found = await read();
      this.#feed.start(found);
      return found;
    });
  }

  /** Returns the looks that the watcher has not taken yet. Throws the error of a look that failed. */
  take(): readonly RunLook[] {
    if (this.#failure !== undefined) throw this.#failure.error;
    const looks = this.#looks;
    this.#looks = [];
    return looks;
  }

  /** Undefined: the watcher must read for itself. */
  give(look: RunLook | undefined): void {
    if (look !== undefined && look.number <= this.#from) return;
    if (look === undefined || this.#looks.length >= MOST_WAITING) this.#isBehind = true;
    else this.#looks.push(look);
    this.#listener();
  }

  fail(error: unknown): void {
    this.#failure = { error };
    this.#listener();
  }

  leave(): void {
    this.#feed.leave(this);
  }
}

export function runDeleted(runId: string): AnabranchError {
  return new AnabranchError('RUN_DELETED', `Run ${runId} was deleted while it was being watched.`, {
    metadata: { run_id: runId },
  });
}
