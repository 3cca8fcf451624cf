import {
  type Hint,
  keyOfHint,
  parseSeriesHint,
  runHint,
  type SeriesChange,
  seriesSubject,
  subjectOf,
  trajectoryHint,
} from '../domain/change.ts';
import type { TrajectoryRef } from '../domain/trajectory.ts';
import type { AwaitedRows, ChangedRows, ChangeStore } from '../store/contract/change.ts';
import type { Horizon } from '../store/contract/run.ts';
import type { AppSettings } from './settings.ts';

type Stop = () => void;
type Listener = () => void;

/** While hints of other instances arrive, what only they would tell is polled at each so many ticks. */
export const TICKS_BETWEEN_POLLS = 5;

/** A failed poll is repeated at the next tick. After so many, all who wait read for themselves, and get the error. */
const FAILED_POLLS = 2;

interface Followed {
  readonly ref: TrajectoryRef;
  readonly end: () => bigint | undefined;
}

/** Values of a watched run that change without a hint, as of the last poll. */
interface WatchedRun {
  watchers: number;
  derived: string | undefined;
}

/**
 * Who waits for what on this instance. Followers, watchers and waiting claims wait for hints. Because a hint can be
 * lost, one statement for all of them finds what has changed: at every tick while hints of other instances do not
 * arrive, else at every fifth. A listener without arguments must read again. All subscriptions return a function that
 * unsubscribes.
 */
export class ChangeHub {
  readonly #store: ChangeStore;
  readonly #subjects = new Listeners<string, unknown>();
  readonly #followed = new Set<Followed>();
  /** By key: how often it is subscribed to. */
  readonly #runs = new Map<bigint, number>();
  readonly #watched = new Map<bigint, WatchedRun>();
  readonly #queues = new Listeners<string, undefined>();
  readonly #any = new Listeners<'trajectory' | 'run' | 'poll' | 'tick', bigint | undefined>();
  readonly #timer: NodeJS.Timeout;
  readonly #unsubscribe: Stop;
  #ticks = 0;
  #since: Horizon | undefined;
  #polling: Promise<void> | undefined;
  #pollAgain = false;
  #failures = 0;

  constructor(store: ChangeStore, { pollMs }: Pick<AppSettings, 'pollMs'>) {
    this.#store = store;
    this.#unsubscribe = store.onChange((hint) => (hint === undefined ? this.#anything() : this.#hear(hint)));
    this.#timer = setInterval(() => this.#tick(), pollMs).unref();
  }

  /** Waits for changes of a trajectory. `end` returns the known end; undefined while nobody needs to know more. */
  onTrajectory(ref: TrajectoryRef, end: () => bigint | undefined, listener: Listener): Stop {
    const followed = { ref, end };
    this.#followed.add(followed);
    const stop = this.#subjects.add(trajectoryHint(ref.key), listener);
    return () => {
      stop();
      this.#followed.delete(followed);
    };
  }

  /** Waits for changes of a run and what it has. */
  onRun(key: bigint, listener: Listener): Stop {
    this.#runs.set(key, (this.#runs.get(key) ?? 0) + 1);
    const stop = this.#subjects.add(runHint(key), listener);
    return once(() => {
      stop();
      const others = this.#runs.get(key)! - 1;
      if (others > 0) this.#runs.set(key, others);
      else this.#runs.delete(key);
    });
  }

  /**
   * Watches a run: also waits for values that change without a hint, such as the turns of live rollouts. They are
   * compared at every tick.
   */
  onWatchedRun(key: bigint, listener: Listener): Stop {
    const watched = this.#watched.get(key) ?? { watchers: 0, derived: undefined };
    watched.watchers += 1;
    this.#watched.set(key, watched);
    const stop = this.onRun(key, listener);
    return once(() => {
      stop();
      watched.watchers -= 1;
      if (watched.watchers === 0) this.#watched.delete(key);
    });
  }

  /** Waits for PENDING rollouts of any run of a namespace. */
  onQueue(namespace: string, listener: Listener): Stop {
    const stops = [this.#queues.add(namespace, listener), this.#any.add('run', listener)];
    return () => {
      for (const stop of stops) stop();
    };
  }

  /** Waits for points of metric series of a run. The change is undefined if any points may have been written. */
  onSeries(runId: string, listener: (change: SeriesChange | undefined) => void): Stop {
    return this.#subjects.add(seriesSubject(runId), listener as (change: unknown) => void);
  }

  /** Waits for changes of any trajectory. The key is undefined if any may have changed, and at polls. */
  onAnyTrajectory(listener: (key: bigint | undefined) => void): Stop {
    const stops = [this.#any.add('trajectory', listener), this.#any.add('poll', listener)];
    return () => {
      for (const stop of stops) stop();
    };
  }

  /** Waits for changes of any run, and for polls. */
  onAnyRun(listener: Listener): Stop {
    const stops = [this.#any.add('run', listener), this.#any.add('poll', listener)];
    return () => {
      for (const stop of stops) stop();
    };
  }

  /** Calls the listener at polls, for those who look for lost hints themselves. */
  onPoll(listener: Listener): Stop {
    return this.#any.add('poll', listener);
  }

  /** Calls the listener every `pollMs`. */
  onTick(listener: Listener): Stop {
    return this.#any.add('tick', listener);
  }

  /** Number of subscriptions. */
  get listeners(): number {
    return this.#subjects.size + this.#queues.size + this.#any.size;
  }

  close(): void {
    clearInterval(this.#timer);
    this.#unsubscribe();
  }

  /** A hint for which nobody waits is looked up, and not parsed. */
  #hear(hint: Hint): void {
    const subject = subjectOf(hint);
    if (this.#subjects.has(subject)) {
      this.#subjects.tell(subject, hint.startsWith('s') ? parseSeriesHint(hint) : undefined);
    }
    if (hint.startsWith('t') && this.#any.has('trajectory')) this.#any.tell('trajectory', keyOfHint(hint));
    if (hint.startsWith('r')) this.#any.tell('run', undefined);
  }

  /** Hints may have been lost. What a statement can find out is polled at once. */
  #anything(): void {
    for (const subject of this.#subjects.keys()) if (subject.startsWith('s')) this.#subjects.tell(subject, undefined);
    this.#any.tell('poll', undefined);
    this.#poll(true);
  }

  #tick(): void {
    this.#ticks += 1;
    const isFull = !this.#store.hearsOthers || this.#ticks % TICKS_BETWEEN_POLLS === 0 || this.#failures > 0;
    if (isFull) this.#any.tell('poll', undefined);
    this.#poll(isFull);
    // Last, because those whose wait ends at this tick are still polled for.
    this.#any.tell('tick', undefined);
  }

  /** With `isFull`, for all who wait, else for watchers of runs only. One poll at a time. */
  #poll(isFull: boolean): void {
    if (this.#polling !== undefined) {
      this.#pollAgain ||= isFull;
      return;
    }
    const awaited = this.#awaited(isFull);
    if (awaited === undefined) return;
    this.#polling = this.#store
      .findChanges(awaited)
      .then(
        (found) => this.#found(found, awaited),
        () => this.#failed(),
      )
      .finally(() => {
        this.#polling = undefined;
        if (!this.#pollAgain) return;
        this.#pollAgain = false;
        this.#poll(true);
      });
  }

  /** Returns undefined if nobody waits. */
  #awaited(isFull: boolean): AwaitedRows | undefined {
    const trajectories = [...(isFull ? this.#followed : [])].flatMap(({ ref, end: known }) => {
      const end = known();
      return end === undefined ? [] : [{ ref, end }];
    });
    const runs = isFull || this.#watched.size > 0 ? [...this.#runs.keys()] : [];
    const queues = isFull ? [...this.#queues.keys()] : [];
    const isIdle = trajectories.length + runs.length + queues.length === 0;
    return isIdle ? undefined : { trajectories, runs, queues, since: this.#since };
  }

  #found({ trajectories, runs, queues, horizon }: ChangedRows, awaited: AwaitedRows): void {
    this.#failures = 0;
    this.#foundRuns(runs, awaited, horizon);
    for (const key of trajectories) this.#subjects.tell(trajectoryHint(key), undefined);
    for (const namespace of queues) this.#queues.tell(namespace, undefined);
  }

  #foundRuns(runs: ChangedRows['runs'], awaited: AwaitedRows, horizon: Horizon): void {
    if (awaited.runs.length === 0) return;
    const found = new Map(runs.map((run) => [run.key, run]));
    this.#since = horizon;
    for (const key of [...this.#runs.keys()]) {
      const run = found.get(key);
      const watched = this.#watched.get(key);
      const isNews = watched !== undefined && watched.derived !== run?.derived;
      if (watched !== undefined) watched.derived = run?.derived;
      // Without a row, the run is gone, or was subscribed to during the poll: then it may have changed before it.
      if (run === undefined || run.changed || isNews) this.#subjects.tell(runHint(key), undefined);
    }
  }

  #failed(): void {
    this.#failures += 1;
    if (this.#failures < FAILED_POLLS) return;
    for (const subject of this.#subjects.keys()) this.#subjects.tell(subject, undefined);
    for (const namespace of this.#queues.keys()) this.#queues.tell(namespace, undefined);
  }
}

/** Listeners by what they wait for. */
class Listeners<Key, Value> {
  readonly #byKey = new Map<Key, Set<(value: Value) => void>>();
  size = 0;

  add(key: Key, listener: (value: Value) => void): Stop {
    // The same function can be added twice.
    const own = (value: Value) => listener(value);
    const all = this.#byKey.get(key) ?? new Set();
    this.#byKey.set(key, all.add(own));
    this.size += 1;
    return () => {
      if (!all.delete(own)) return;
      this.size -= 1;
      if (all.size === 0 && this.#byKey.get(key) === all) this.#byKey.delete(key);
    };
  }

  has(key: Key): boolean {
    return this.#byKey.has(key);
  }

  keys(): readonly Key[] {
    return [...this.#byKey.keys()];
  }

  tell(key: Key, value: Value): void {
    for (const listener of [...(this.#byKey.get(key) ?? [])]) listener(value);
  }
}

function once(stop: Stop): Stop {
  let isStopped = false;
  return () => {
    if (isStopped) return;
    isStopped = true;
    stop();
  };
}
