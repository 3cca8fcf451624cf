import type { OpenRequest, SealRequest } from '../../../domain/append.ts';
import type { Caller } from '../../../domain/caller.ts';
import type { AnabranchError } from '../../../domain/errors.ts';
import type { Instant } from '../../../domain/instant.ts';
import type { SealStatus, TrajectoryStatus } from '../../../domain/lifecycle.ts';
import type { App } from '../../app.ts';
import type { IncomingStep } from '../incoming.ts';

/** One frame of steps of an append stream (W3): at least one step, unless it seals. */
export interface AppendFrame {
  readonly steps: readonly IncomingStep[];
  readonly seal: SealRequest | undefined;
  /** Its encoded size: what it counts for in the stream's window. */
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
      readonly sealTime: Instant;
    };

/**
 * What an append stream means (W1 to W5), free of the wire. Frames go in by `push`, answers come out of `events`, both at once. The first
 * refusal ends the stream: everything before it is committed and acked first, everything after it is dropped.
 */
export interface AppendSession {
  readonly opened: Opened;
  /** Takes a frame. False: enough is under way, so wait for `room` before reading the next. After the end it does nothing. */
  push(frame: AppendFrame): boolean;
  /** Resolves when the next frame may be read; also when the session is over. */
  room(): Promise<void>;
  /** A frame that could not even be read: ends the stream with this error, after everything pushed before was committed and acked. */
  fail(error: AnabranchError): void;
  /** The client has sent everything: `events` ends after the last ack. */
  end(): void;
  /** The client is gone: what was pushed is still committed, and nothing more is told. Idempotent, harmless after the end. */
  abandon(): void;
  /** Acks (only the latest waits to be sent), then `sealed`; ends, or throws the refusal. To be called once. */
  events(): AsyncGenerator<AppendEvent, void, undefined>;
}

/** W1. Errors: TRAJECTORY_NOT_FOUND, UNEXPECTED_POSITION, WRITER_FENCED, SERVER_DRAINING. */
export async function openAppendSession(_app: App, _caller: Caller, _open: OpenRequest): Promise<AppendSession> {
  throw new Error('being written');
}
