import type { AnabranchError } from '../../domain/errors.ts';
import { isSealed } from '../../domain/lifecycle.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import { tupleKey } from '../../domain/tuple_key.ts';
import type { EncodedSteps } from '../../store/contract/step.ts';
import type { Store } from '../../store/contract/store.ts';
import type { ChangeHub } from '../change_hub.ts';
import type { LineageCache } from '../lineage_cache.ts';
import { readEncodedPage, type Shown } from './step_page.ts';

/**
 * Pages that are cached for followers that reach the same step a moment later. About 128 KiB each, unless one step is
 * larger.
 */
const CACHED_PAGES = 4;

interface FeedDeps {
  readonly store: Store;
  readonly changes: ChangeHub;
  readonly lineages: LineageCache;
}

/** Lets all followers of a trajectory share a subscription, the reads of its row, and the pages at its end. */
export interface Feeds {
  join(namespace: string, trajectory: Trajectory, shown: Shown): Follower;
  /** Ends all followers with an error, after which they can follow again. */
  endAll(error: AnabranchError): void;
  /** Number of followers. */
  readonly followers: number;
  /** Steps that the follower who is furthest behind has not been sent, as far as they are known. */
  readonly lag: number;
}

export function createFeeds(deps: FeedDeps): Feeds {
  const feeds = new Map<string, Feed>();
  return {
    join(namespace, trajectory, shown) {
      const name = tupleKey(trajectory.ref.key, shown.view, shown.inlineBytes);
      let feed = feeds.get(name);
      if (feed === undefined) {
        const made = new Feed(deps, namespace, trajectory, shown, () => {
          if (feeds.get(name) === made) feeds.delete(name);
        });
        feeds.set(name, made);
        feed = made;
      }
      feed.learn(trajectory);
      return feed.join();
    },
    endAll(error) {
      for (const feed of [...feeds.values()]) feed.end(error);
    },
    get followers() {
      let count = 0;
      for (const feed of feeds.values()) count += feed.followers.size;
      return count;
    },
    get lag() {
      let lag = 0n;
      for (const feed of feeds.values()) for (const { behind } of feed.followers) if (behind > lag) lag = behind;
      return Number(lag);
    },
  };
}

interface Waiter {
  readonly next: bigint;
  /** Ticks that are left until the wait ends. */
  ticks: number;
  readonly resolve: () => void;
  readonly reject: (error: unknown) => void;
}

class Feed {
  readonly followers = new Set<Follower>();
  readonly waiters = new Map<Follower, Waiter>();
  latest: Trajectory;
  deleted = false;
  /** Why the feed has ended. */
  ended: AnabranchError | undefined;
  readonly #deps: FeedDeps;
  readonly #namespace: string;
  readonly #shown: Shown;
  readonly #pages = new Map<bigint, Promise<EncodedSteps[]>>();
  /** Whether the row may have changed since it was read. True at first: it was read before the subscription. */
  #dirty = true;
  #refreshing = false;
  readonly #stop: () => void;

  constructor(deps: FeedDeps, namespace: string, trajectory: Trajectory, shown: Shown, onEmpty: () => void) {
    this.#deps = { ...deps, store: deps.store.within({ signal: new AbortController().signal, namespace }) };
    this.#namespace = namespace;
    this.#shown = shown;
    this.latest = trajectory;
    const known = () => (this.waiters.size > 0 ? this.latest.nextStepNumber : undefined);
    const stopHints = deps.changes.onTrajectory(trajectory.ref, known, () => this.hint());
    const stopTicks = deps.changes.onTick(() => this.#tick());
    this.#stop = () => {
      stopHints();
      stopTicks();
      onEmpty();
    };
  }

  join(): Follower {
    const follower = new Follower(this);
    this.followers.add(follower);
    return follower;
  }

  leave(follower: Follower): void {
    this.waiters.get(follower)?.resolve();
    this.waiters.delete(follower);
    if (this.followers.delete(follower) && this.followers.size === 0) this.#stop();
  }

  /** Followers that wait fail now, others when they ask next. */
  end(error: AnabranchError): void {
    this.ended = error;
    this.#stop();
    this.#failed(error);
  }

  /** Stores a row that was read, unless a newer one is known. */
  learn(row: Trajectory): void {
    if (row.nextStepNumber >= this.latest.nextStepNumber && !isSealed(this.latest.status)) this.latest = row;
  }

  hint(): void {
    this.#dirty = true;
    this.refresh();
  }

  /** Reads the trajectory's row once for all waiting followers, and again if a hint arrived meanwhile. */
  refresh(): void {
    if (this.#refreshing || !this.#dirty || this.waiters.size === 0) return;
    this.#refreshing = true;
    this.#dirty = false;
    this.#deps.store.getTrajectory(this.#namespace, this.latest.id).then(
      (row) => this.#refreshed(row),
      (error: unknown) => this.#failed(error),
    );
  }

  page(from: bigint, live: boolean): Promise<readonly EncodedSteps[]> {
    if (this.ended !== undefined) return Promise.reject(this.ended);
    if (!live) return this.#read(from);
    const cached = this.#pages.get(from);
    if (cached !== undefined) return cached;
    const page = this.#read(from);
    this.#pages.set(from, page);
    page.catch(() => this.#pages.delete(from));
    for (const oldest of this.#pages.keys()) {
      if (this.#pages.size <= CACHED_PAGES) break;
      this.#pages.delete(oldest);
    }
    return page;
  }

  #read(from: bigint): Promise<EncodedSteps[]> {
    const { latest } = this;
    return readEncodedPage(this.#deps, this.#namespace, latest, [from, latest.nextStepNumber], this.#shown);
  }

  #tick(): void {
    for (const [follower, waiter] of this.waiters) {
      waiter.ticks -= 1;
      if (waiter.ticks <= 0) this.release(follower, waiter);
    }
  }

  #refreshed(row: Trajectory | undefined): void {
    this.#refreshing = false;
    if (row === undefined || row.ref.key !== this.latest.ref.key) this.deleted = true;
    else this.learn(row);
    for (const [follower, waiter] of this.waiters) {
      if (this.hasNews(waiter.next)) this.release(follower, waiter);
    }
    this.refresh();
  }

  #failed(error: unknown): void {
    this.#refreshing = false;
    this.#dirty = true;
    for (const waiter of this.waiters.values()) waiter.reject(error);
    this.waiters.clear();
  }

  hasNews(next: bigint): boolean {
    return this.deleted || this.latest.nextStepNumber > next || isSealed(this.latest.status);
  }

  release(follower: Follower, waiter: Waiter): void {
    this.waiters.delete(follower);
    waiter.resolve();
  }
}

export class Follower {
  readonly #feed: Feed;
  /** The step that it has asked for last. Undefined: it has not asked yet. */
  #next: bigint | undefined;

  constructor(feed: Feed) {
    this.#feed = feed;
  }

  /** Steps from the one that it has asked for last to the known end. */
  get behind(): bigint {
    return this.#next === undefined ? 0n : this.end - this.#next;
  }

  /** The known end of the trajectory. Never decreases. */
  get end(): bigint {
    return this.#feed.latest.nextStepNumber;
  }

  /** Whether the trajectory is known to be sealed. */
  get sealed(): boolean {
    return isSealed(this.#feed.latest.status);
  }

  /** Whether the trajectory is known to be deleted. */
  get deleted(): boolean {
    return this.#feed.deleted;
  }

  /** Returns the page of steps that begins at `from`, by owner. Live followers share pages. */
  page(from: bigint, live: boolean): Promise<readonly EncodedSteps[]> {
    this.#next = from;
    return this.#feed.page(from, live);
  }

  /** Resolves when the trajectory has step `next`, is sealed or deleted, after `ticks` ticks, or by `wake`. */
  change(next: bigint, ticks: number): Promise<void> {
    this.#next = next;
    if (this.#feed.ended !== undefined) return Promise.reject(this.#feed.ended);
    if (this.#feed.hasNews(next)) return Promise.resolve();
    return new Promise((resolve, reject) => {
      this.#feed.waiters.set(this, { next, ticks, resolve, reject });
      this.#feed.refresh();
    });
  }

  wake(): void {
    const waiter = this.#feed.waiters.get(this);
    if (waiter !== undefined) this.#feed.release(this, waiter);
  }

  /** Idempotent. */
  leave(): void {
    this.#feed.leave(this);
  }
}
