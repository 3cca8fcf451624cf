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
import { readSiblings, SiblingsShown } from './watch_rollouts.ts';

export interface WatchRunArgs {
  readonly runId: string;
  /** The snapshot has terminal stages too. */
  readonly allStages: boolean;
  /** End once the run is terminal, and that has been shown. */
  readonly untilTerminal: boolean;
  /** Groups and rollouts too. */
  readonly rollouts?: boolean;
  /** Aborted when the caller is gone: waiting ends at once. */
  readonly signal: AbortSignal;
}

/** What is told at once; fits into 1 MiB. */
export interface RunShown {
  /** Undefined: it is as it was. */
  readonly run: Run | undefined;
  readonly stages: readonly Stage[];
  readonly groups: readonly Group[];
  readonly rollouts: readonly Rollout[];
  readonly progress: Progress | undefined;
  /** The snapshot is complete with this, or was before. */
  readonly caughtUp: boolean;
}

/**
 * M5: a snapshot, then the latest value of each row that changed, at least once and at most every `watchMs`.
 * Level-triggered: hints, polls and reconnects of the listener all mean "look from the last horizon", so none of them
 * has to be trusted.
 * Errors: RUN_NOT_FOUND, RUN_DELETED, SERVER_DRAINING.
 */
export async function* watchRun(
  app: App,
  caller: Caller,
  args: WatchRunArgs,
): AsyncGenerator<RunShown, void, undefined> {
  const { id, key } = await findRun(app, caller, args.runId);
  const schedule = new LookSchedule(app.settings);
  // Subscribes before the snapshot is read: what changes meanwhile is looked at again.
  schedule.listen((listener) => app.changes.subscribe(key, listener), app.drain, args.signal);
  try {
    yield* watch(app, caller, { id, key }, args, schedule);
  } finally {
    schedule.stop();
  }
}

async function* watch(
  app: App,
  caller: Caller,
  { id, key }: Pick<Run, 'id' | 'key'>,
  { allStages, untilTerminal, rollouts = false, signal }: WatchRunArgs,
  schedule: LookSchedule,
): AsyncGenerator<RunShown, void, undefined> {
  const picture = new Picture();
  const siblings = new SiblingsShown();
  let since: Horizon | undefined;
  while (!signal.aborted) {
    app.drain.throwIfBegun();
    schedule.beginLook();
    const read = await app.store.readRunChanges(caller.namespace, id, since, allStages);
    if (read?.run.key !== key) throw runDeleted(id);
    const snapshot = since === undefined;
    // With groups and rollouts the snapshot is complete after these.
    const marks = { snapshot, last: !rollouts, due: schedule.progressDue };
    for (const shown of messagesOf(picture.news(read), marks)) {
      schedule.sent();
      yield shown;
    }
    if (rollouts) {
      const where = { since: read.since, allStages: allStages || !snapshot };
      for await (const some of siblings.news(readSiblings(app, caller, key, where))) {
        schedule.sent();
        yield { ...NOTHING, ...some, caughtUp: !snapshot };
      }
      if (snapshot) yield { ...NOTHING, caughtUp: true };
    }
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
  progress: undefined,
  caughtUp: false,
});

interface News {
  readonly run: Run | undefined;
  readonly stages: readonly Stage[];
  readonly progress: Progress | undefined;
}

/** What the watcher has been told. */
class Picture {
  #run = '';
  #progress = '';
  /**
   * Revisions of the stages of the last look. These are enough: a stage that a look finds again was found by the look
   * before as well.
   */
  #stages: ReadonlyMap<bigint, bigint> = new Map();

  news({ run, stages, tally }: RunChangesRead): News {
    const progress = progressOf(run.status, run.plan, tally);
    const [runText, progressText] = [textOf(runSigns(run)), textOf(progress)];
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

/**
 * What tells one value of a run from another: its revision, and what is derived when it is read and changes without it.
 */
function runSigns({ revision, stale, mainTrajectory, experiment }: Run): unknown[] {
  const { id, nextStepNumber, rewardSum } = mainTrajectory ?? {};
  return [revision, stale, id, nextStepNumber, `${rewardSum}`, experiment.name];
}

function textOf(value: unknown): string {
  return JSON.stringify(value, (_key, part: unknown) => (typeof part === 'bigint' ? `${part}` : part));
}

/**
 * The news in as many messages as they need: none if there are none, but for a mark that is due. The progress comes
 * with the last, which completes the snapshot if it is the `last` of it.
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

function runDeleted(runId: string): AnabranchError {
  return new AnabranchError('RUN_DELETED', `Run ${runId} was deleted while it was being watched.`, {
    metadata: { run_id: runId },
  });
}
