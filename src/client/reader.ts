import { Code, ConnectError } from '@connectrpc/connect';
import { type Step, View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type { ReadStepsRequest, ReadStepsResponse } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { ClientCalls } from './calls.ts';
import { Patience, systemTiming } from './retry.ts';
import { Silence } from './silence.ts';

/** Options of readSteps(). */
export interface ReadOptions {
  readonly trajectoryId: string;
  /** First step to read. Default 0. */
  readonly startStepNumber?: bigint;
  /**
   * First step after the range. Default: the trajectory's end when the server begins to read. With `follow` there is no
   * default end.
   */
  readonly endStepNumber?: bigint;
  /** View of the steps. Default FULL. */
  readonly view?: View;
  /** Continues with new steps as they are committed, until `endStepNumber` or the seal. Default false. */
  readonly follow?: boolean;
  /** Makes the generator throw the signal's reason when it is aborted. Leaving the loop also ends the call. */
  readonly signal?: AbortSignal;
  /** Called after every message, also after messages without steps. Must not throw. */
  readonly onProgress?: (progress: ReadProgress) => void;
  /** Gives up after this many milliseconds without progress. Default 5 minutes. Infinity disables the limit. */
  readonly giveUpAfterMs?: number;
  /**
   * Reconnects when the server sends nothing for this many milliseconds. The server sends progress every 15 seconds.
   * Default 45,000.
   */
  readonly silenceMs?: number;
}

/** Position of a read. */
export interface ReadProgress {
  /** The first step that was not delivered yet. */
  readonly nextStepNumber: bigint;
  readonly caughtUp: boolean;
  readonly sealed: boolean;
}

/** A step and the id of the trajectory that owns it. Shared steps belong to an ancestor. */
export interface OwnedStep {
  readonly trajectoryId: string;
  readonly step: Step;
}

/**
 * Reads steps in order, each once. After a lost connection it reconnects and continues at the next step (rule R2). Ends
 * after the range; with `follow`, at `endStepNumber` or the seal. Throws permanent errors, and DEADLINE_EXCEEDED after
 * `giveUpAfterMs` without progress.
 *
 *     for await (const { step } of readSteps(client, { trajectoryId, follow: true })) console.log(step.reward);
 */
export async function* readSteps(
  client: Pick<ClientCalls, 'trajectories'>,
  options: ReadOptions,
): AsyncGenerator<OwnedStep, void, undefined> {
  const timing = systemTiming();
  const patience = new Patience(options.giveUpAfterMs ?? 5 * 60_000, timing);
  let position = options.startStepNumber ?? 0n;
  for (;;) {
    // Leaving the loop, or silence, must also end the call on the server. The caller's signal does not cover these.
    const call = new AbortController();
    const signal = options.signal === undefined ? call.signal : AbortSignal.any([call.signal, options.signal]);
    try {
      for await (const message of readOnce(client, options, position, { call, signal })) {
        patience.progress();
        for (const step of message.steps) {
          // The position moves with each step that the caller takes, so that a lost connection within a message repeats
          // no step.
          position = stepAfter(position, step.stepNumber);
          yield { trajectoryId: message.trajectoryId, step };
        }
        const { caughtUp, sealed } = message;
        options.onProgress?.({ nextStepNumber: position, caughtUp, sealed });
      }
      return;
    } catch (error) {
      options.signal?.throwIfAborted();
      await timing.sleep(patience.next(error).delayMs, options.signal);
    } finally {
      call.abort(new ConnectError('the caller stopped reading', Code.Canceled));
    }
  }
}

/** Makes one call. Only the wait for a message counts as silence, not the time that the caller works. */
async function* readOnce(
  client: Pick<ClientCalls, 'trajectories'>,
  options: ReadOptions,
  startStepNumber: bigint,
  { call, signal }: { call: AbortController; signal: AbortSignal },
): AsyncGenerator<ReadStepsResponse, void, undefined> {
  const silence = new Silence(options.silenceMs ?? 45_000, (error) => call.abort(error));
  const messages = client.trajectories.readSteps(request(options, startStepNumber), { signal })[Symbol.asyncIterator]();
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

type Request = Pick<ReadStepsRequest, 'trajectoryId' | 'startStepNumber' | 'view' | 'follow' | 'endStepNumber'>;

function request(options: ReadOptions, startStepNumber: bigint): Request {
  const { trajectoryId, endStepNumber, view = View.UNSPECIFIED, follow = false } = options;
  return { trajectoryId, startStepNumber, endStepNumber, view, follow };
}

/** Checks that no step is missed, repeated or out of order (promise O1). */
function stepAfter(due: bigint, sent: bigint): bigint {
  if (sent === due) return due + 1n;
  throw new ConnectError(`the server sent step ${sent}: expected step ${due}`, Code.DataLoss);
}
