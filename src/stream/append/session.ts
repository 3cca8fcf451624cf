import type { OpenRequest, SealRequest, StepTag } from '../../domain/append.ts';
import type { Caller } from '../../domain/caller.ts';
import { type AnabranchError, databaseReplaced, invalidField } from '../../domain/errors.ts';
import type { Instant } from '../../domain/instant.ts';
import { isSealed, type SealStatus, type TrajectoryStatus } from '../../domain/lifecycle.ts';
import { LIMITS } from '../../domain/limits.ts';
import type { NewSteps } from '../../domain/step_codec/packed_step.ts';
import type { AppendBatch, Grant } from '../../store/contract/append.ts';
import type { TrajectoryCreation } from '../../store/contract/trajectory.ts';
import type { App } from '../app.ts';
import type { BatchSource, Committed } from './committer.ts';

/** One frame of steps of an append stream (W3): at least one step, unless it seals. */
export interface AppendFrame extends NewSteps {
  readonly tags: readonly StepTag[];
  readonly seal: SealRequest | undefined;
  /** Bytes that the frame takes of the stream's window: its encoded size, or its size in memory if that is larger. */
  readonly bytes: number;
}

export interface Opened {
  readonly epoch: bigint;
  /** Whether the stream has fenced a writer of another principal (N3). */
  readonly tookOver: boolean;
  readonly uid: string;
  readonly nextStepNumber: bigint;
  readonly status: TrajectoryStatus;
}

/** What the server sends on an append stream after `opened`. */
export type AppendEvent =
  | {
      readonly kind: 'ack';
      readonly nextStepNumber: bigint;
      readonly commitTime: Instant;
      /** Number of duplicates on this stream. */
      readonly duplicateSteps: bigint;
    }
  | {
      readonly kind: 'sealed';
      readonly status: SealStatus;
      readonly message: string;
      readonly nextStepNumber: bigint;
      readonly sealTime: Instant | undefined;
    };

/** Opens a stream (W1). Errors: those of `openForAppend`, SERVER_DRAINING. */
export async function openAppendSession(
  app: App,
  caller: Caller,
  open: OpenRequest,
  create?: TrajectoryCreation,
): Promise<AppendSession> {
  app.drain.throwIfBegun();
  return new AppendSession(app, caller, await app.store.openForAppend(caller, open, create));
}

interface PendingAck {
  readonly nextStepNumber: bigint;
  readonly commitTime: Instant;
}

/**
 * An append stream without the wire (W1 to W5). `push` takes frames while `events` returns acks. The first error ends
 * the stream: earlier frames are committed and acked, later ones are dropped.
 */
export class AppendSession implements BatchSource {
  readonly opened: Opened;
  readonly #app: App;
  readonly #caller: Caller;
  readonly #grant: Grant;
  #unsubscribe: () => void = () => undefined;
  #pendingBatches = 0;
  #pendingBytes = 0;
  #duplicates = 0n;
  /**
   * The number after the last step of this stream that was committed. Acks never exceed it, even if the trajectory is
   * longer, and never decrease (W4).
   */
  #handled = 0n;
  /** The ack that waits to be sent. A later ack replaces it (W4). */
  #ack: PendingAck | undefined;
  #sealedBy: Committed | undefined;
  #sealPushed = false;
  /** True when no more frames are taken: after an error (`inputError`), or when the client has sent all frames. */
  #inputOver = false;
  #inputError: unknown;
  /** Set once the database may lack what this stream has stored. The client must compare its end with that. */
  #replaced: AnabranchError | undefined;
  /** The error of a batch. Later frames are dropped. */
  #refusal: { readonly error: unknown } | undefined;
  #wakeEvents: (() => void) | undefined;
  #wakeReader: (() => void) | undefined;

  constructor(app: App, caller: Caller, grant: Grant) {
    this.#app = app;
    this.#caller = caller;
    this.#grant = grant;
    const { uid, nextStepNumber, status } = grant.trajectory;
    this.opened = { epoch: grant.epoch, tookOver: grant.tookOver, uid, nextStepNumber, status };
    const stops = [
      app.drain.onBegin((error) => this.fail(error)),
      app.store.onReplaced(() => {
        this.#replaced = databaseReplaced('Open the stream again, and compare your last ack with its end.');
        this.fail(this.#replaced);
      }),
    ];
    this.#unsubscribe = () => {
      for (const stop of stops) stop();
    };
  }

  get trace(): BatchSource['trace'] {
    return this.#app.call.trace;
  }

  get over(): boolean {
    return this.#refusal !== undefined;
  }

  /** Whether more frames are taken. */
  get accepting(): boolean {
    return !this.#inputOver;
  }

  /**
   * Submits a frame. Returns false if the window is full: the caller must await `room` before it reads the next frame.
   * Does nothing after the end of the input.
   */
  push(frame: AppendFrame): boolean {
    if (this.#inputOver) return true;
    try {
      this.#submit(frame);
    } catch (error) {
      this.fail(error);
    }
    return this.#inputOver || this.#pendingBytes < LIMITS.streamWindowBytes;
  }

  /** Resolves when the window has room, or when no more frames are taken. */
  room(): Promise<void> {
    if (this.#inputOver || this.#pendingBytes < LIMITS.streamWindowBytes) return Promise.resolve();
    return new Promise((resolve) => {
      this.#wakeReader = resolve;
    });
  }

  /** Ends the input with an error. `events` throws it after the acks of all earlier frames. */
  fail(error: unknown): void {
    if (this.#inputOver) return;
    this.#inputError = error;
    this.#endInput();
  }

  /** Ends the input, because the client has sent all frames. `events` ends after the last ack. */
  end(): void {
    if (!this.#inputOver) this.#endInput();
  }

  /** Ends the session of a client that has disconnected. Frames that were pushed are still committed. Idempotent. */
  abandon(): void {
    this.#endInput();
  }

  /** Returns acks (only the latest waits to be sent), then `sealed`. Throws the error of the stream. Call once. */
  async *events(): AsyncGenerator<AppendEvent, void, undefined> {
    try {
      for (;;) {
        if (this.#ack !== undefined) yield this.#takeAck(this.#ack);
        else if (this.#sealedBy !== undefined) yield this.#takeSealed(this.#sealedBy);
        else if (this.#refusal !== undefined) throw this.#refusal.error;
        else if (this.#pendingBatches === 0 && (this.#inputOver || this.#sealPushed)) {
          if (this.#inputError !== undefined) throw this.#inputError;
          return;
        } else await this.#nextEvent();
      }
    } finally {
      this.#endInput();
    }
  }

  committed(batch: AppendBatch, bytes: number, outcome: Committed): void {
    this.#pendingBatches -= 1;
    this.#count(-bytes);
    this.#duplicates += BigInt(outcome.duplicates);
    for (const { stepNumber } of batch.steps) if (stepNumber >= this.#handled) this.#handled = stepNumber + 1n;
    if (batch.steps.length > 0) this.#ack = { nextStepNumber: this.#handled, commitTime: outcome.commitTime };
    if (batch.seal !== undefined) this.#sealedBy = outcome;
    this.#wakeEvents?.();
    if (this.#pendingBytes < LIMITS.streamWindowBytes) this.#wakeReader?.();
  }

  failed(_batch: AppendBatch, _bytes: number, error: unknown): void {
    this.#refusal = { error: this.#replaced ?? error };
    this.#pendingBatches = 0;
    this.#count(-this.#pendingBytes);
    this.#endInput();
  }

  #submit(frame: AppendFrame): void {
    if (this.#sealPushed) throw invalidField('seal', 'must come with the last frame: nothing can follow it');
    if (frame.steps.length === 0 && frame.seal === undefined) {
      throw invalidField('steps', 'must hold at least one step, unless the frame carries seal');
    }
    const { steps, states, tags, seal } = frame;
    const { trajectory, epoch } = this.#grant;
    const batch: AppendBatch = {
      caller: this.#caller,
      ref: trajectory.ref,
      trajectoryId: trajectory.id,
      uid: undefined,
      writerEpoch: epoch,
      steps,
      states,
      tags,
      seal,
    };
    this.#sealPushed = seal !== undefined;
    this.#pendingBatches += 1;
    this.#count(frame.bytes);
    this.#app.committer.submit(this, batch, frame.bytes);
  }

  #count(bytes: number): void {
    this.#pendingBytes += bytes;
    this.#app.waiting.add(bytes, this.#app.load);
  }

  #endInput(): void {
    this.#inputOver = true;
    this.#unsubscribe();
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

  #nextEvent(): Promise<void> {
    return new Promise((resolve) => {
      this.#wakeEvents = resolve;
    });
  }
}
