import { equals } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import { type Group, GroupSchema, type Rollout, RolloutSchema } from '../../gen/es/anabranch/v1/rollout_pb.js';
import {
  type Progress,
  ProgressSchema,
  type Run,
  RunSchema,
  type Stage,
  StageSchema,
} from '../../gen/es/anabranch/v1/run_pb.js';
import type { RunChanges, WatchedSeries } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type { ClientCalls } from './calls.ts';
import { resumedStream } from './resumed_stream.ts';
import { KnownSeries, Rows } from './watch_rows.ts';
import { serverLeft, type WatchCalls, type WatchedOptions, watchedOnce } from './watched_stream.ts';

/** Options of watchRun(). */
export interface WatchOptions extends WatchedOptions {
  readonly runId: string;
  /** Begins with all stages instead of only the open ones. Stages that end later stay in the picture. Default false. */
  readonly allStages?: boolean;
  /** Includes the groups and rollouts of the included stages. Default false. */
  readonly rollouts?: boolean;
  /** Includes the metric series of the run and its stages. Default false. */
  readonly series?: boolean;
  /**
   * Ends after a picture that shows the run as COMPLETED, FAILED or CANCELLED. Default false: watches until the caller
   * leaves.
   */
  readonly untilTerminal?: boolean;
  /**
   * Called when the last picture is complete, also if a reconnect brought no change and so no new picture. Must not
   * throw.
   */
  readonly onCaughtUp?: () => void;
}

/** An immutable snapshot of the run as far as it is known. Rows are in the BASIC view. */
export interface RunPicture {
  readonly run: Run;
  /** Stages by id. Contains the stage of every group and rollout in the picture. */
  readonly stages: ReadonlyMap<string, Stage>;
  /** Groups by id. Empty unless `rollouts` is true. */
  readonly groups: ReadonlyMap<string, Group>;
  /** Rollouts by id. Empty unless `rollouts` is true. */
  readonly rollouts: ReadonlyMap<string, Rollout>;
  /** Metric series, by `seriesId`. Empty unless `series` is true. */
  readonly series: ReadonlyMap<string, WatchedSeries>;
  readonly progress: Progress;
  /** Differences from the previous picture. In the first picture, everything. */
  readonly changed: PictureChanges;
}

interface PictureChanges {
  readonly run: boolean;
  readonly stages: readonly Stage[];
  readonly groups: readonly Group[];
  readonly rollouts: readonly Rollout[];
  /** Series with new points. `changedFrom` is the lowest step that may have changed since the previous picture. */
  readonly series: readonly WatchedSeries[];
  readonly progress: boolean;
}

/** Returns the name under which a picture has a series. Keys of series can contain any character. */
export function seriesId({ stageId, key }: Pick<WatchedSeries, 'stageId' | 'key'>): string {
  return `${stageId} ${key}`;
}

/**
 * Watches a run. Yields the whole picture, and again after every change. After a lost connection it reconnects and
 * continues with its last picture; the newest revision of each row counts (rule M5). Throws permanent errors, and
 * DEADLINE_EXCEEDED after `giveUpAfterMs` without a message.
 *
 *     for await (const { run, progress } of watchRun(client, { runId, untilTerminal: true })) {
 *       console.log(run.phase, progress.percent);
 *     }
 */
export async function* watchRun(
  client: WatchCalls & Pick<ClientCalls, 'runs' | 'rollouts'>,
  options: WatchOptions,
): AsyncGenerator<RunPicture, void, undefined> {
  const { runId, allStages = false, untilTerminal = false, rollouts = false, series = false } = options;
  const builder = new PictureBuilder();
  const looks = resumedStream(options, async function* (signal) {
    builder.begin();
    const run = { runId, allStages, untilTerminal, rollouts, series };
    for await (const { run: changes, caughtUp } of watchedOnce(client, { run }, signal)) {
      if (changes !== undefined) builder.take(changes);
      if (caughtUp) await takeMissing(client, builder, rollouts, signal);
      yield { caughtUp, picture: caughtUp ? builder.picture() : undefined };
    }
    if (!untilTerminal || !builder.terminal) throw serverLeft();
  });
  for await (const { caughtUp, picture } of looks) {
    if (picture !== undefined) yield picture;
    if (caughtUp) options.onCaughtUp?.();
  }
}

/** Reads the stages that the server does not send, because they ended while the watch was disconnected or before. */
async function takeMissing(
  client: Pick<ClientCalls, 'runs' | 'rollouts'>,
  builder: PictureBuilder,
  rollouts: boolean,
  signal: AbortSignal,
): Promise<void> {
  const take = async (stageId: string) =>
    builder.takeStage((await client.runs.getStage({ stageId, view: View.BASIC }, { signal })).stage);
  for (const stageId of builder.missing()) {
    // Rollouts are read before the stage. If the connection is lost between the two, the stage is still missing and is
    // read again.
    if (rollouts) await takeRollouts(client, builder, stageId, signal);
    await take(stageId);
  }
  for (const stageId of builder.unknownStages()) await take(stageId);
}

/** Reads the groups and rollouts of a stage that ended while the watch was disconnected. */
async function takeRollouts(
  client: Pick<ClientCalls, 'runs' | 'rollouts'>,
  builder: PictureBuilder,
  stageId: string,
  signal: AbortSignal,
): Promise<void> {
  let pageToken = '';
  do {
    const page = await client.rollouts.listRollouts({ stageId, pageSize: 1000, pageToken }, { signal });
    builder.takeRollouts(page);
    pageToken = page.nextPageToken;
  } while (pageToken !== '');
  do {
    const page = await client.rollouts.listGroups({ stageId, pageSize: 1000, pageToken }, { signal });
    builder.takeRollouts(page);
    pageToken = page.nextPageToken;
  } while (pageToken !== '');
}

/** Combines messages of one or several calls into pictures. */
class PictureBuilder {
  #run: Run | undefined;
  #progress: Progress | undefined;
  readonly #stages = new Rows<typeof StageSchema, Stage>(StageSchema);
  readonly #groups = new Rows<typeof GroupSchema, Group>(GroupSchema);
  readonly #rollouts = new Rows<typeof RolloutSchema, Rollout>(RolloutSchema);
  readonly #series = new KnownSeries();
  #newRun = false;
  #newProgress = false;
  /** Stages that were open when this call began, and that it has not sent yet. */
  #unseen = new Set<string>();
  /**
   * Stages of groups and rollouts that changed after their stage had ended. The server sends only rows that changed.
   */
  readonly #unknownStages = new Set<string>();

  /** Prepares for another call. Its snapshot does not contain stages that ended in the meantime. */
  begin(): void {
    for (const { id, status } of this.#stages.all.values()) if (!isTerminal(status)) this.#unseen.add(id);
  }

  take({ run, stages, groups, rollouts, series, progress }: RunChanges): void {
    if (run !== undefined) this.#takeRun(run);
    for (const stage of stages) this.takeStage(stage);
    this.takeRollouts({ groups, rollouts });
    for (const each of series) this.#series.take(seriesId(each), each);
    if (progress === undefined) return;
    this.#newProgress ||= this.#progress === undefined || !equals(ProgressSchema, this.#progress, progress);
    this.#progress = progress;
  }

  /** Derived values can change without the revision: `stale`, and the end of the main trajectory. */
  #takeRun(run: Run): void {
    if (this.#run !== undefined && (run.revision < this.#run.revision || equals(RunSchema, this.#run, run))) return;
    this.#run = run;
    this.#newRun = true;
  }

  takeStage(stage: Stage | undefined): void {
    if (stage === undefined) return;
    this.#unseen.delete(stage.id);
    this.#unknownStages.delete(stage.id);
    this.#stages.take(stage);
  }

  takeRollouts({ groups = [], rollouts = [] }: { groups?: readonly Group[]; rollouts?: readonly Rollout[] }): void {
    for (const group of groups) this.#groups.take(group);
    for (const rollout of rollouts) this.#rollouts.take(rollout);
    for (const { stageId } of [...groups, ...rollouts]) {
      if (!this.#stages.all.has(stageId)) this.#unknownStages.add(stageId);
    }
  }

  /**
   * Returns stages that were open before the reconnect and are not open now. They ended while the watch was
   * disconnected.
   */
  missing(): string[] {
    return [...this.#unseen];
  }

  /** Returns the ids of stages that rows of the picture belong to and that the server did not send. */
  unknownStages(): string[] {
    return [...this.#unknownStages];
  }

  get terminal(): boolean {
    return this.#run !== undefined && isTerminal(this.#run.status);
  }

  /** Returns a new picture, or undefined if nothing changed. */
  picture(): RunPicture | undefined {
    const rows = [this.#stages, this.#groups, this.#rollouts, this.#series];
    if (!this.#newRun && !this.#newProgress && !rows.some(({ changed }) => changed)) return undefined;
    if (this.#run === undefined || this.#progress === undefined) {
      throw new ConnectError(
        'the server marked its snapshot as complete, but sent no run or no progress',
        Code.DataLoss,
      );
    }
    const changed = {
      run: this.#newRun,
      stages: this.#stages.takeFresh(),
      groups: this.#groups.takeFresh(),
      rollouts: this.#rollouts.takeFresh(),
      series: this.#series.takeFresh(),
      progress: this.#newProgress,
    };
    this.#newRun = false;
    this.#newProgress = false;
    const [stages, groups, rollouts] = [this.#stages.all, this.#groups.all, this.#rollouts.all];
    const series = this.#series.all;
    return { run: this.#run, stages, groups, rollouts, series, progress: this.#progress, changed };
  }
}

function isTerminal(status: Status): boolean {
  return status === Status.COMPLETED || status === Status.FAILED || status === Status.CANCELLED;
}
