import type { Caller } from '../../domain/caller.ts';
import { AnabranchError } from '../../domain/errors.ts';
import { isTerminal } from '../../domain/lifecycle.ts';
import { type Progress, progressOf } from '../../domain/progress.ts';
import type { Group, Rollout } from '../../domain/rollout.ts';
import type { Run, Stage } from '../../domain/run.ts';
import type { Horizon, RunChangesRead } from '../../store/contract/run.ts';
import type { App } from '../app.ts';
import { findRun } from '../find.ts';
import { rowParts } from '../row_bytes.ts';
import type { Subject } from '../watch.ts';
import { SeriesHints } from './series_hints.ts';
import { KnownRows, readChangedRows } from './watch_rollouts.ts';
import { KnownSeries, type SeriesShown } from './watch_series.ts';

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

/** What changed in a run, or a part of it; less than 1 MiB. */
export interface RunNews {
  /** Undefined if it has not changed. */
  readonly run: Run | undefined;
  readonly stages: readonly Stage[];
  readonly groups: readonly Group[];
  readonly rollouts: readonly Rollout[];
  readonly series: readonly SeriesShown[];
  readonly progress: Progress | undefined;
}

/** A watched run (M5). Errors: RUN_DELETED. */
export class WatchedRun implements Subject<RunNews> {
  readonly #app: App;
  readonly #caller: Caller;
  readonly #run: Pick<Run, 'id' | 'key'>;
  readonly #args: WatchedRunArgs;
  readonly #known = new KnownRun();
  readonly #rows = new KnownRows();
  readonly #series: KnownSeries;
  /** Undefined: metric series are not watched. */
  readonly #hints: SeriesHints | undefined;
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
    this.#series = new KnownSeries(app, caller, run.id);
    this.#hints = args.series ? new SeriesHints() : undefined;
  }

  subscribe(listener: () => void): () => void {
    const { changes } = this.#app;
    const stops = [changes.onWatchedRun(this.#run.key, listener)];
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
    const { id, key } = this.#run;
    const { allStages, rollouts } = this.#args;
    const read = await this.#app.store.readRunChanges(this.#caller.namespace, id, this.#since, allStages);
    if (read?.run.key !== key) throw runDeleted(id);
    const isSnapshot = this.#since === undefined;
    yield* messagesOf(this.#known.news(read));
    if (rollouts) {
      const where = { since: read.since, allStages: allStages || !isSnapshot };
      const changed = readChangedRows(this.#app, this.#caller, key, where);
      for await (const some of this.#rows.news(changed)) yield { ...NOTHING, ...some };
    }
    if (this.#hints !== undefined) {
      const looked = unlessDeleted(this.#series.look(this.#hints.take(), isSnapshot), id);
      for await (const series of looked) yield { ...NOTHING, series };
    }
    this.#since = read.horizon;
    this.#isTerminal = isTerminal(read.run.status);
  }

  hasEnded(): boolean {
    return this.#args.untilTerminal && this.#isTerminal;
  }
}

const NOTHING: RunNews = Object.freeze({
  run: undefined,
  stages: [],
  groups: [],
  rollouts: [],
  series: [],
  progress: undefined,
});

type OwnNews = Pick<RunNews, 'run' | 'stages' | 'progress'>;

/** What the watcher has received about the run and its stages. */
class KnownRun {
  #run = '';
  #progress = '';
  /** Revisions of the stages of the last look. A look repeats only stages that the previous look returned. */
  #stages: ReadonlyMap<bigint, bigint> = new Map();

  news({ run, stages, tally }: RunChangesRead): OwnNews {
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

/** Splits news into messages. The last one has the progress. */
function* messagesOf({ run, stages, progress }: OwnNews): Generator<RunNews> {
  if (run === undefined && progress === undefined && stages.length === 0) return;
  const parts = stages.length === 0 ? [[]] : [...rowParts(stages)];
  for (const [i, part] of parts.entries()) {
    const isLast = i === parts.length - 1;
    yield {
      ...NOTHING,
      run: i === 0 ? run : undefined,
      stages: part,
      progress: isLast ? progress : undefined,
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
