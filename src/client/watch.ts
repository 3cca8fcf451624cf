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
import type { WatchedSeries, WatchRunResponse } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type { ClientCalls } from './calls.ts';
import { Patience, systemTiming } from './retry.ts';
import { Silence } from './silence.ts';
import { KnownSeries, Rows } from './watch_rows.ts';

/** Options of watchRun(). */
export interface WatchOptions {
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
  /** Makes the generator throw the signal's reason when it is aborted. Leaving the loop also ends the call. */
  readonly signal?: AbortSignal;
  /** Called for every error that is retried. Must not throw. */
  readonly onCut?: (error: unknown, retryInMs: number) => void;
  /**
   * Called when the last picture is complete, also if a reconnect brought no change and so no new picture. Must not
   * throw.
   */
  readonly onCaughtUp?: () => void;
  /**
   * Gives up after this many milliseconds without a message of the server. Default 5 minutes. Infinity disables the
   * limit.
   */
  readonly giveUpAfterMs?: number;
  /**
   * Reconnects when the server sends nothing for this many milliseconds. The server sends a message at least every 15
   * seconds. Default 45,000.
   */
  readonly silenceMs?: number;
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
  readonly changed: RunChanges;
}

interface RunChanges {
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
  client: Pick<ClientCalls, 'runs' | 'rollouts'>,
  options: WatchOptions,
): AsyncGenerator<RunPicture, void, undefined> {
  const timing = systemTiming();
  const patience = new Patience(options.giveUpAfterMs ?? 5 * 60_000, timing);
  const builder = new PictureBuilder();
  for (;;) {
    // Leaving the loop, or silence, must also end the call on the server. The caller's signal does not cover these.
    const call = new AbortController();
    const signal = options.signal === undefined ? call.signal : AbortSignal.any([call.signal, options.signal]);
    try {
      builder.begin();
      for await (const message of watchOnce(client, options, { call, signal })) {
        patience.progress();
        builder.take(message);
        if (!message.caughtUp) continue;
        for (const stageId of builder.missing()) {
          // Rollouts are read before the stage. If the connection is lost between the two, the stage is still missing
          // and is read again.
          if (options.rollouts === true) await takeRollouts(client, builder, stageId, signal);
          builder.takeStage((await client.runs.getStage({ stageId, view: View.BASIC }, { signal })).stage);
        }
        for (const stageId of builder.unknownStages()) {
          builder.takeStage((await client.runs.getStage({ stageId, view: View.BASIC }, { signal })).stage);
        }
        const picture = builder.picture();
        if (picture !== undefined) yield picture;
        options.onCaughtUp?.();
      }
      if (options.untilTerminal === true && builder.terminal) return;
      throw new ConnectError('the server ended the watch', Code.Unavailable);
    } catch (error) {
      options.signal?.throwIfAborted();
      const { delayMs } = patience.next(error);
      options.onCut?.(error, delayMs);
      await timing.sleep(delayMs, options.signal);
    } finally {
      call.abort(new ConnectError('the caller stopped watching', Code.Canceled));
    }
  }
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

/** Makes one call. Only the wait for a message counts as silence, not the time that the caller works. */
async function* watchOnce(
  client: Pick<ClientCalls, 'runs' | 'rollouts'>,
  { runId, allStages = false, untilTerminal = false, rollouts = false, series = false, silenceMs }: WatchOptions,
  { call, signal }: { call: AbortController; signal: AbortSignal },
): AsyncGenerator<WatchRunResponse, void, undefined> {
  const silence = new Silence(silenceMs ?? 45_000, (error) => call.abort(error));
  const request = { runId, allStages, untilTerminal, rollouts, series };
  const messages = client.runs.watchRun(request, { signal })[Symbol.asyncIterator]();
  try {
    for (;;) {
      silence.restart();
      const { done, value } = await messages.next();
      silence.pause();
      if (done === true) return;
      yield value;
    }
  } finally {
    silence.stop();
  }
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

  take({ run, stages, groups, rollouts, series = [], progress }: WatchRunResponse): void {
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
