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
import type { WatchRunResponse } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type { ClientCalls } from './calls.ts';
import { Patience, systemTiming } from './retry.ts';
import { Silence } from './silence.ts';
import { Rows } from './watch_rows.ts';

/** Which run to watch, and how patiently. */
export interface WatchOptions {
  readonly runId: string;
  /** Begin with all stages, not only with those that are open. Stages stay in the picture when they end. */
  readonly allStages?: boolean;
  /** Show groups and rollouts, too: those of the stages that are shown. */
  readonly rollouts?: boolean;
  /** End once the run is COMPLETED, FAILED or CANCELLED, and that was shown. Otherwise watch until the caller leaves. */
  readonly untilTerminal?: boolean;
  /** Aborting it makes the generator throw the signal's reason. Breaking out of the loop ends the call too. */
  readonly signal?: AbortSignal;
  /** Told of every cut that is waited out; must not throw. */
  readonly onCut?: (error: unknown, retryInMs: number) => void;
  /** Give up after so long without a word of the server. Default 5 minutes; Infinity: never. */
  readonly giveUpAfterMs?: number;
  /** Connect again when the server said nothing for so long; it gives a mark every 15 seconds. Default 45 seconds. */
  readonly silenceMs?: number;
}

/** The run as it is now, as far as was told: a value of its own, which does not change any more. Rows are in the BASIC view. */
export interface RunPicture {
  readonly run: Run;
  /** By id. Contains the stage of every group and rollout in the picture. */
  readonly stages: ReadonlyMap<string, Stage>;
  /** By id; none unless `rollouts` was asked for. */
  readonly groups: ReadonlyMap<string, Group>;
  /** By id; none unless `rollouts` was asked for. */
  readonly rollouts: ReadonlyMap<string, Rollout>;
  readonly progress: Progress;
  /** What is new since the picture before; in the first one everything. */
  readonly changed: RunChanges;
}

interface RunChanges {
  readonly run: boolean;
  readonly stages: readonly Stage[];
  readonly groups: readonly Group[];
  readonly rollouts: readonly Rollout[];
  readonly progress: boolean;
}

/**
 * Watches a run: yields the whole picture, and again whenever something of it has changed. After a cut it connects by itself and goes on
 * with the picture that it had; of each row the newest revision counts (rule M5).
 *
 *     for await (const { run, progress } of watchRun(client, { runId, untilTerminal: true })) console.log(run.phase, progress.percent);
 */
export async function* watchRun(
  client: Pick<ClientCalls, 'runs' | 'rollouts'>,
  options: WatchOptions,
): AsyncGenerator<RunPicture, void, undefined> {
  const timing = systemTiming();
  const patience = new Patience(options.giveUpAfterMs ?? 5 * 60_000, timing);
  const canvas = new Canvas();
  for (;;) {
    // The call's own end, beside the caller's: breaking out of the loop, or silence, must end it on the server too.
    const call = new AbortController();
    const signal = options.signal === undefined ? call.signal : AbortSignal.any([call.signal, options.signal]);
    try {
      canvas.begin();
      for await (const message of watchOnce(client, options, { call, signal })) {
        patience.progress();
        canvas.take(message);
        if (!message.caughtUp) continue;
        for (const stageId of canvas.missing()) {
          // Its rollouts first: should this be cut too, the stage is still missing.
          if (options.rollouts === true) await takeRollouts(client, canvas, stageId, signal);
          canvas.takeStage((await client.runs.getStage({ stageId, view: View.BASIC }, { signal })).stage);
        }
        for (const stageId of canvas.unknownStages()) {
          canvas.takeStage((await client.runs.getStage({ stageId, view: View.BASIC }, { signal })).stage);
        }
        const picture = canvas.picture();
        if (picture !== undefined) yield picture;
      }
      if (options.untilTerminal === true && canvas.terminal) return;
      throw new ConnectError('the server ended the watch', Code.Unavailable);
    } catch (error) {
      options.signal?.throwIfAborted();
      const { delayMs } = patience.next(error);
      options.onCut?.(error, delayMs);
      await timing.sleep(delayMs, options.signal);
    } finally {
      call.abort(new ConnectError('the watcher has left', Code.Canceled));
    }
  }
}

/** The groups and rollouts of a stage that ended while nobody looked. */
async function takeRollouts(
  client: Pick<ClientCalls, 'runs' | 'rollouts'>,
  canvas: Canvas,
  stageId: string,
  signal: AbortSignal,
): Promise<void> {
  let pageToken = '';
  do {
    const page = await client.rollouts.listRollouts({ stageId, pageSize: 1000, pageToken }, { signal });
    canvas.takeRollouts(page);
    pageToken = page.nextPageToken;
  } while (pageToken !== '');
  do {
    const page = await client.rollouts.listGroups({ stageId, pageSize: 1000, pageToken }, { signal });
    canvas.takeRollouts(page);
    pageToken = page.nextPageToken;
  } while (pageToken !== '');
}

/** One call. Silence counts only while the next message is waited for, not while the caller works. */
async function* watchOnce(
  client: Pick<ClientCalls, 'runs' | 'rollouts'>,
  { runId, allStages = false, untilTerminal = false, rollouts = false, silenceMs = 45_000 }: WatchOptions,
  { call, signal }: { call: AbortController; signal: AbortSignal },
): AsyncGenerator<WatchRunResponse, void, undefined> {
  const silence = new Silence(silenceMs, (error) => call.abort(error));
  const request = { runId, allStages, untilTerminal, rollouts };
  const messages = client.runs.watchRun(request, { signal })[Symbol.asyncIterator]();
  try {
    for (;;) {
      silence.heard();
      const { done, value } = await messages.next();
      silence.rest();
      if (done === true) return;
      yield value;
    }
  } finally {
    silence.stop();
  }
}

/** Puts messages together to a picture, over as many calls as it takes. */
class Canvas {
  #run: Run | undefined;
  #progress: Progress | undefined;
  readonly #stages = new Rows<typeof StageSchema, Stage>(StageSchema);
  readonly #groups = new Rows<typeof GroupSchema, Group>(GroupSchema);
  readonly #rollouts = new Rows<typeof RolloutSchema, Rollout>(RolloutSchema);
  #newRun = false;
  #newProgress = false;
  /** Stages that were open when this call began, and that it has not told of yet. */
  #unseen = new Set<string>();
  /** Stages of groups and rollouts that changed after their stage had ended: the server sends only the rows that changed. */
  readonly #unknownStages = new Set<string>();

  /** Another call begins: with a snapshot, which need not tell of stages that have ended meanwhile. */
  begin(): void {
    for (const { id, status } of this.#stages.all.values()) if (!isTerminal(status)) this.#unseen.add(id);
  }

  take({ run, stages, groups, rollouts, progress }: WatchRunResponse): void {
    if (run !== undefined) this.#takeRun(run);
    for (const stage of stages) this.takeStage(stage);
    this.takeRollouts({ groups, rollouts });
    if (progress === undefined) return;
    this.#newProgress ||= this.#progress === undefined || !equals(ProgressSchema, this.#progress, progress);
    this.#progress = progress;
  }

  /** One revision may come with other derived values: stale, or the end of its main trajectory. */
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

  /** Stages that were open before a cut and are not among the open ones now: they ended while nobody looked. */
  missing(): string[] {
    return [...this.#unseen];
  }

  /** Ids of stages that rows of the picture belong to and that the server did not send. */
  unknownStages(): string[] {
    return [...this.#unknownStages];
  }

  get terminal(): boolean {
    return this.#run !== undefined && isTerminal(this.#run.status);
  }

  /** Undefined where nothing is new. */
  picture(): RunPicture | undefined {
    const rows = [this.#stages, this.#groups, this.#rollouts];
    if (!this.#newRun && !this.#newProgress && !rows.some(({ changed }) => changed)) return undefined;
    if (this.#run === undefined || this.#progress === undefined) {
      throw new ConnectError('the server says that its snapshot is complete, and it is not', Code.DataLoss);
    }
    const changed = {
      run: this.#newRun,
      stages: this.#stages.takeFresh(),
      groups: this.#groups.takeFresh(),
      rollouts: this.#rollouts.takeFresh(),
      progress: this.#newProgress,
    };
    this.#newRun = false;
    this.#newProgress = false;
    const [stages, groups, rollouts] = [this.#stages.all, this.#groups.all, this.#rollouts.all];
    return { run: this.#run, stages, groups, rollouts, progress: this.#progress, changed };
  }
}

function isTerminal(status: Status): boolean {
  return status === Status.COMPLETED || status === Status.FAILED || status === Status.CANCELLED;
}
