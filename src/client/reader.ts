import { Code, ConnectError } from '@connectrpc/connect';
import { type Step, View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type { ReadStepsRequest, ReadStepsResponse } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { ClientCalls } from './calls.ts';
import { Patience, systemTiming } from './retry.ts';
import { Silence } from './silence.ts';

/** Which steps to read, and how patiently. */
export interface ReadOptions {
  readonly trajectoryId: string;
  /** First step. Default 0. */
  readonly startStepNumber?: bigint;
  /** First step after the range. Default: the end as it is when the server begins to read; with follow: none. */
  readonly endStepNumber?: bigint;
  /** Default FULL. */
  readonly view?: View;
  /** Go on as steps are committed, until endStepNumber or the seal. */
  readonly follow?: boolean;
  /** Aborting it makes the generator throw the signal's reason. Breaking out of the loop ends the call too. */
  readonly signal?: AbortSignal;
  /** Told of every message, steps or not: how far it is, and whether what comes now is live. Must not throw. */
  readonly onProgress?: (progress: ReadProgress) => void;
  /** Give up after so long without progress. Default 5 minutes; Infinity: never. */
  readonly giveUpAfterMs?: number;
  /** Connect again when the server said nothing for so long; it marks progress every 15 seconds. Default 45 seconds. */
  readonly silenceMs?: number;
}

/** Where a read is. */
export interface ReadProgress {
  /** The first step not delivered yet. */
  readonly nextStepNumber: bigint;
  readonly caughtUp: boolean;
  readonly sealed: boolean;
}

/** A step and the trajectory that owns it: an ancestor's id for shared steps. */
export interface OwnedStep {
  readonly trajectoryId: string;
  readonly step: Step;
}

/**
 * Reads steps in order, each once, and goes on at the next one after a cut (rule R2). Ends after the range; with `follow`,
 * when `endStepNumber` or the seal is reached.
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
    // The call's own end, beside the caller's: breaking out of the loop, or silence, must end it on the server too.
    const call = new AbortController();
    const signal = options.signal === undefined ? call.signal : AbortSignal.any([call.signal, options.signal]);
    try {
      for await (const message of readOnce(client, options, position, { call, signal })) {
        patience.progress();
        for (const step of message.steps) {
          // Moved with each step that the caller takes: a cut in the middle of a message repeats nothing.
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
      call.abort(new ConnectError('the reader has left', Code.Canceled));
    }
  }
}

/** One call. Silence counts only while the next message is waited for, not while the caller works. */
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

type Request = Pick<ReadStepsRequest, 'trajectoryId' | 'startStepNumber' | 'view' | 'follow' | 'endStepNumber'>;

function request(options: ReadOptions, startStepNumber: bigint): Request {
  const { trajectoryId, endStepNumber, view = View.UNSPECIFIED, follow = false } = options;
  return { trajectoryId, startStepNumber, endStepNumber, view, follow };
}

/** No step is missed, repeated or out of order (promise O1), whatever the server sends. */
function stepAfter(due: bigint, sent: bigint): bigint {
  if (sent === due) return due + 1n;
  throw new ConnectError(`the server sent step ${sent} where ${due} was due`, Code.DataLoss);
}
