import type { OpenRequest, SealRequest } from '../../domain/append.ts';
import type { Caller } from '../../domain/caller.ts';
import { invalidField } from '../../domain/errors.ts';
import type { Instant } from '../../domain/instant.ts';
import { isSealed, type SealStatus, type TrajectoryStatus } from '../../domain/lifecycle.ts';
import { LIMITS } from '../../domain/limits.ts';
import type { NewSteps } from '../../domain/step.ts';
import type { AppendBatch, Grant } from '../../store/contract/append.ts';
import type { App } from '../app.ts';
import { serverDraining } from '../drain.ts';
import type { BatchSource, Committed } from './committer.ts';

/** One frame of steps of an append stream (W3): at least one step, unless it seals. */
export interface AppendFrame extends NewSteps {
  readonly seal: SealRequest | undefined;
  /** What it counts for in the stream's window: its encoded size, or more where it takes more memory than that. */
  readonly bytes: number;
}

export interface Opened {
  readonly epoch: bigint;
  readonly uid: string;
  readonly nextStepNumber: bigint;
  readonly status: TrajectoryStatus;
}

/** What the server has to say on an append stream after `opened`. */
export type AppendEvent =
  | {
      readonly kind: 'ack';
      readonly nextStepNumber: bigint;
      readonly commitTime: Instant;
      /** Counted over the stream. */
      readonly duplicateSteps: bigint;
    }
  | {
      readonly kind: 'sealed';
      readonly status: SealStatus;
      readonly message: string;
      readonly nextStepNumber: bigint;
      readonly sealTime: Instant | undefined;
    };

/** W1. Errors: TRAJECTORY_NOT_FOUND, UNEXPECTED_POSITION, WRITER_FENCED, SERVER_DRAINING. */
export async function openAppendSession(app: App, caller: Caller, open: OpenRequest): Promise<AppendSession> {
  app.drain.throwIfBegun();
  return new AppendSession(app, caller, await app.store.openForAppend(caller, open));
}

interface PendingAck {
  readonly nextStepNumber: bigint;
  readonly commitTime: Instant;
}

/**
 * What an append stream means (W1 to W5), free of the wire. Frames go in by `push`, answers come out of `events`, both
 * at once. The first refusal ends the stream: everything before it is committed and acked first, everything after it is
 * dropped.
 */
export class AppendSession implements BatchSource {
  readonly opened: Opened;
  readonly #app: App;
  readonly #caller: Caller;
  readonly #grant: Grant;
  #stopWaitingForDrain: () => void = () => undefined;
  #batchesUnderWay = 0;
  #bytesUnderWay = 0;
  #duplicates = 0n;
  /**
   * Behind the last number handled on this stream: acks never exceed it, wherever the trajectory ends, and never go
   * back (W4).
   */
  #handled = 0n;
  /** The ack that waits to be sent; a later one takes its place (W4). */
  #ack: PendingAck | undefined;
  #sealedBy: Committed | undefined;
  #sealPushed = false;
  /** No more frames are taken; `inputError` says why, unless the client simply had no more. */
  #inputOver = false;
  #inputError: unknown;
  /** The store's refusal: what was pushed behind it is dropped. */
  #refusal: { readonly error: unknown } | undefined;
  #wakeEvents: (() => void) | undefined;
  #wakeReader: (() => void) | undefined;

  constructor(app: App, caller: Caller, grant: Grant) {
    this.#app = app;
    this.#caller = caller;
    this.#grant = grant;
    const { uid, nextStepNumber, status } = grant.trajectory;
    this.opened = { epoch: grant.epoch, uid, nextStepNumber, status };
    this.#stopWaitingForDrain = app.drain.onBegin(() => this.fail(serverDraining()));
  }

  get over(): boolean {
    return this.#refusal !== undefined;
  }

  /** False once no more frames are taken: the reader may stop reading. */
  get accepting(): boolean {
    return !this.#inputOver;
  }

  /**
   * Takes a frame. False: enough is under way, so wait for `room` before reading the next. After the end it does
   * nothing.
   */
  push(frame: AppendFrame): boolean {
    if (this.#inputOver) return true;
    try {
      this.#submit(frame);
    } catch (error) {
      this.fail(error);
    }
    return this.#inputOver || this.#bytesUnderWay < LIMITS.streamWindowBytes;
  }

  /** Resolves when the next frame may be read; also when no more frames are taken. */
  room(): Promise<void> {
    if (this.#inputOver || this.#bytesUnderWay < LIMITS.streamWindowBytes) return Promise.resolve();
    return new Promise((resolve) => {
      this.#wakeReader = resolve;
    });
  }

  /**
   * A frame that could not even be read: ends the stream with this error, after everything pushed before was committed
   * and acked.
   */
  fail(error: unknown): void {
    if (this.#inputOver) return;
    this.#inputError = error;
    this.#endInput();
  }

  /** The client has sent everything: `events` ends after the last ack. */
  end(): void {
    if (!this.#inputOver) this.#endInput();
  }

  /**
   * The client is gone: what was pushed is still committed, and nothing more is told. Idempotent, harmless after the
   * end.
   */
  abandon(): void {
    this.#endInput();
  }

  /** Acks (only the latest waits to be sent), then `sealed`; ends, or throws the refusal. To be called once. */
  async *events(): AsyncGenerator<AppendEvent, void, undefined> {
    try {
      for (;;) {
        if (this.#ack !== undefined) yield this.#takeAck(this.#ack);
        else if (this.#sealedBy !== undefined) yield this.#takeSealed(this.#sealedBy);
        else if (this.#refusal !== undefined) throw this.#refusal.error;
        else if (this.#batchesUnderWay === 0 && (this.#inputOver || this.#sealPushed)) {
          if (this.#inputError !== undefined) throw this.#inputError;
          return;
        } else await this.#somethingToTell();
      }
    } finally {
      this.#endInput();
    }
  }

  committed(batch: AppendBatch, bytes: number, outcome: Committed): void {
    this.#batchesUnderWay -= 1;
    this.#bytesUnderWay -= bytes;
    this.#duplicates += BigInt(outcome.duplicates);
    for (const { stepNumber } of batch.steps) if (stepNumber >= this.#handled) this.#handled = stepNumber + 1n;
    if (batch.steps.length > 0) this.#ack = { nextStepNumber: this.#handled, commitTime: outcome.commitTime };
    if (batch.seal !== undefined) this.#sealedBy = outcome;
    this.#wakeEvents?.();
    if (this.#bytesUnderWay < LIMITS.streamWindowBytes) this.#wakeReader?.();
  }

  failed(_batch: AppendBatch, _bytes: number, error: unknown): void {
    this.#refusal = { error };
    this.#batchesUnderWay = 0;
    this.#bytesUnderWay = 0;
    this.#endInput();
  }

  #submit(frame: AppendFrame): void {
    if (this.#sealPushed) throw invalidField('seal', 'must come with the last frame: nothing can follow it');
    if (frame.steps.length === 0 && frame.seal === undefined) {
      throw invalidField('steps', 'must hold at least one step, unless the frame carries seal');
    }
    const { steps, states, seal } = frame;
    const { trajectory, epoch } = this.#grant;
    const batch: AppendBatch = {
      caller: this.#caller,
      ref: trajectory.ref,
      trajectoryId: trajectory.id,
      uid: undefined,
      writerEpoch: epoch,
      steps,
      states,
      seal,
    };
    this.#sealPushed = seal !== undefined;
    this.#batchesUnderWay += 1;
    this.#bytesUnderWay += frame.bytes;
    this.#app.committer.submit(this, batch, frame.bytes);
  }

  #endInput(): void {
    this.#inputOver = true;
    this.#stopWaitingForDrain();
    this.#wakeEvents?.();
    this.#wakeReader?.();
  }

  #takeAck({ nextStepNumber, commitTime }: PendingAck): AppendEvent {
    this.#ack = undefined;
    return { kind: 'ack', nextStepNumber, commitTime, duplicateSteps: this.#duplicates };
  }

  #takeSealed({ status, statusMessage, nextStepNumber, sealTime }: Committed): AppendEvent {
    this.#sealedBy = undefined;
    if (!isSealed(status)) throw new Error('the store committed a seal, but the trajectory is not sealed');
    return { kind: 'sealed', status, message: statusMessage, nextStepNumber, sealTime };
  }

  #somethingToTell(): Promise<void> {
    return new Promise((resolve) => {
      this.#wakeEvents = resolve;
    });
  }
}
