import { type Progress, progressOf } from '../../domain/progress.ts';
import type { Group, Rollout } from '../../domain/rollout.ts';
import type { Run, Stage } from '../../domain/run.ts';
import type { RunChangesRead } from '../../store/contract/run.ts';
import { rowParts } from '../row_bytes.ts';
import type { SeriesShown } from './watch_series.ts';

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

export const NO_NEWS: RunNews = Object.freeze({
  run: undefined,
  stages: [],
  groups: [],
  rollouts: [],
  series: [],
  progress: undefined,
});

/** What watchers have received about a run and its stages. */
export class KnownRun {
  #run = '';
  #progress = '';
  /** Revisions of the stages of the last look. A look repeats only stages that the previous look returned. */
  #stages: ReadonlyMap<bigint, bigint> = new Map();

  /** Yields what is new of the run, its stages and its progress. The last part has the progress. */
  *news({ run, stages, tally }: RunChangesRead): Generator<RunNews> {
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
    yield* partsOf(news);
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

function* partsOf({ run, stages, progress }: Pick<RunNews, 'run' | 'stages' | 'progress'>): Generator<RunNews> {
  if (run === undefined && progress === undefined && stages.length === 0) return;
  const parts = stages.length === 0 ? [[]] : [...rowParts(stages)];
  for (const [i, part] of parts.entries()) {
    const isLast = i === parts.length - 1;
    yield {
      ...NO_NEWS,
      run: i === 0 ? run : undefined,
      stages: part,
      progress: isLast ? progress : undefined,
    };
  }
}
