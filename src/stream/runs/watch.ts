import type { Caller } from '../../domain/caller.ts';
import { AnabranchError } from '../../domain/errors.ts';
import { isTerminal } from '../../domain/lifecycle.ts';
import { type Progress, progressOf } from '../../domain/progress.ts';
import type { Group, Rollout } from '../../domain/rollout.ts';
import type { Run, Stage } from '../../domain/run.ts';
import type { Horizon, RunChangesRead } from '../../store/contract/run.ts';
import type { App } from '../app.ts';
import { findRun } from '../find.ts';
import { LookSchedule } from '../look_schedule.ts';
import { rowParts } from '../row_bytes.ts';
import { SeriesHints } from './series_hints.ts';
import { KnownRows, readChangedRows } from './watch_rollouts.ts';
import { KnownSeries, type SeriesShown } from './watch_series.ts';

export interface WatchRunArgs {
  readonly runId: string;
  /** Includes terminal stages in the snapshot. */
  readonly allStages: boolean;
  /** Ends after the message that shows the run as terminal. */
  readonly untilTerminal: boolean;
  /** Includes groups and rollouts. */
  readonly rollouts?: boolean;
  /** Includes metric series. */
  readonly series?: boolean;
  /** Ends the wait when it is aborted. */
  readonly signal: AbortSignal;
}

/** One message; at most 1 MiB. */
export interface RunShown {
  /** Undefined if it has not changed. */
  readonly run: Run | undefined;
  readonly stages: readonly Stage[];
  readonly groups: readonly Group[];
  readonly rollouts: readonly Rollout[];
  readonly series: readonly SeriesShown[];
  readonly progress: Progress | undefined;
  /** Whether the snapshot is complete with this message or was complete before. */
  readonly caughtUp: boolean;
}

/**
 * M5: returns a snapshot, then the latest value of each row that changed, at least once and at most every `watchMs`.
 * Each hint, poll or reconnection reads what changed since the last horizon, so no hint needs to be reliable. Errors:
 * RUN_NOT_FOUND, RUN_DELETED, SERVER_DRAINING.
 */
export async function* watchRun(
  app: App,
  caller: Caller,
  args: WatchRunArgs,
): AsyncGenerator<RunShown, void, undefined> {
  const { id, key } = await findRun(app, caller, args.runId);
  const schedule = new LookSchedule(app.settings);
  const hints = args.series ? new SeriesHints(id) : undefined;
  // Subscribes before it reads the snapshot, so that changes during the read cause another look.
  schedule.listen((listener) => subscribe(app.changes, key, hints, listener), app.drain, args.signal);
  try {
    yield* watch(app, caller, { id, key, hints }, args, schedule);
  } finally {
    schedule.stop();
  }
}

function subscribe(changes: App['changes'], key: bigint, hints: SeriesHints | undefined, listener: () => void) {
  const stop = changes.subscribe(key, listener);
  if (hints === undefined) return stop;
  const stopSeries = changes.subscribeSeries((change) => {
    if (hints.add(change)) listener();
  });
  return () => {
    stop();
    stopSeries();
  };
}

interface Watched extends Pick<Run, 'id' | 'key'> {
  /** Undefined: metric series are not watched. */
  readonly hints: SeriesHints | undefined;
}

async function* watch(
  app: App,
  caller: Caller,
  { id, key, hints }: Watched,
  { allStages, untilTerminal, rollouts = false, signal }: WatchRunArgs,
  schedule: LookSchedule,
): AsyncGenerator<RunShown, void, undefined> {
  const known = new KnownRun();
  const rows = new KnownRows();
  const series = new KnownSeries(app, caller, id);
  let since: Horizon | undefined;
  while (!signal.aborted) {
    app.drain.throwIfBegun();
    schedule.beginLook();
    const read = await app.store.readRunChanges(caller.namespace, id, since, allStages);
    if (read?.run.key !== key) throw runDeleted(id);
    const snapshot = since === undefined;
    // With rollouts or series, the snapshot is complete only after these.
    const marks = { snapshot, last: !rollouts && hints === undefined, due: schedule.progressDue };
    for (const shown of messagesOf(known.news(read), marks)) {
      schedule.sent();
      yield shown;
    }
    if (rollouts) {
      const where = { since: read.since, allStages: allStages || !snapshot };
      for await (const some of rows.news(readChangedRows(app, caller, key, where))) {
        schedule.sent();
        yield { ...NOTHING, ...some, caughtUp: !snapshot };
      }
    }
    if (hints !== undefined) {
      for await (const some of unlessDeleted(series.look(hints.take(), snapshot), id)) {
        schedule.sent();
        yield { ...NOTHING, series: some, caughtUp: !snapshot };
      }
    }
    if (snapshot && !marks.last) yield { ...NOTHING, caughtUp: true };
    since = read.horizon;
    if (untilTerminal && isTerminal(read.run.status)) return;
    await schedule.nextLook();
  }
}

const NOTHING: RunShown = Object.freeze({
  run: undefined,
  stages: [],
  groups: [],
  rollouts: [],
  series: [],
  progress: undefined,
  caughtUp: false,
});

interface News {
  readonly run: Run | undefined;
  readonly stages: readonly Stage[];
  readonly progress: Progress | undefined;
}

/** What the watcher has received about the run and its stages. */
class KnownRun {
  #run = '';
  #progress = '';
  /** Revisions of the stages of the last look. A look repeats only stages that the previous look returned. */
  #stages: ReadonlyMap<bigint, bigint> = new Map();

  news({ run, stages, tally }: RunChangesRead): News {
    const progress = progressOf(run.status, run.plan, tally);
    const [runText, progressText] = [textOf(versionOf(run)), textOf(progress)];
    const news = {
      run: runText === this.#run ? undefined : run,
      stages: stages.filter(({ key, revision }) => this.#stages.get(key) !== revision),
      progress: progressText === this.#progress ? undefined : progress,
    };
    this.#run = runText;
    this.#progress = progressText;
    this.#stages = new Map(stages.map(({ key, revision }) => [key, revision]));
    return news;
  }
}

/** Returns values that differ if the run has changed: its revision, and derived values that change without it. */
function versionOf({ revision, stale, mainTrajectory, experiment }: Run): unknown[] {
  const { id, nextStepNumber, rewardSum } = mainTrajectory ?? {};
  return [revision, stale, id, nextStepNumber, `${rewardSum}`, experiment.name];
}

function textOf(value: unknown): string {
  return JSON.stringify(value, (_key, part: unknown) => (typeof part === 'bigint' ? `${part}` : part));
}

/**
 * Splits news into messages. Without news, returns one message for a snapshot or if a sign of progress is `due`. The
 * last message has the progress. It completes the snapshot if `last` is set.
 */
function* messagesOf(
  { run, stages, progress }: News,
  { snapshot, last, due }: { readonly snapshot: boolean; readonly last: boolean; readonly due: boolean },
): Generator<RunShown> {
  const parts = stages.length === 0 ? [[]] : [...rowParts(stages)];
  if (run === undefined && progress === undefined && stages.length === 0 && !due && !snapshot) return;
  for (const [i, part] of parts.entries()) {
    const ends = i === parts.length - 1;
    yield {
      ...NOTHING,
      run: i === 0 ? run : undefined,
      stages: part,
      progress: ends ? progress : undefined,
      caughtUp: !snapshot || (ends && last),
    };
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

function runDeleted(runId: string): AnabranchError {
  return new AnabranchError('RUN_DELETED', `Run ${runId} was deleted while it was being watched.`, {
    metadata: { run_id: runId },
  });
}
