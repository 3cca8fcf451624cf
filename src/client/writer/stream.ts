import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import {
  type AppendOpened,
  type AppendOpenSchema,
  type AppendSealed,
  type AppendStepsRequest,
  AppendStepsRequestSchema,
  type AppendStepsResponse,
  SealSchema,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { AnabranchClient } from '../connection.ts';
import { Silence } from '../silence.ts';
import type { SealStatus } from './contract.ts';
import type { Entry, StepQueue } from './queue.ts';

/** What one stream sends, and whom it informs. */
interface StreamPlan {
  readonly client: AnabranchClient;
  readonly queue: StepQueue;
  readonly open: MessageInitShape<typeof AppendOpenSchema>;
  /** Checks and records the grant. An error that it throws ends the stream. */
  readonly onOpened: (opened: AppendOpened) => void;
  /** Called when an ack moves the end. */
  readonly onAcked: () => void;
  /** Returns the seal to send after the last step, or undefined. */
  readonly seal: () => { status: SealStatus; message: string } | undefined;
  readonly maxUnackedSteps: number;
  readonly maxUnackedBytes: number;
  /** Steps below this index are sent one per frame, so that a rejection concerns only one step. */
  readonly isolatedBelow: number;
  readonly silenceMs: number;
}

/** Target size of a frame, unless the server's `stepBytes` is less. Only a single larger step makes a larger frame. */
export const FRAME_BYTES = 256 * 1024;
export const FRAME_STEPS = 1024;

const DONE: IteratorReturnResult<undefined> = { done: true, value: undefined };

/**
 * One append stream: opens, replays from the first unacked step, then sends what the queue receives. The
 * transport pulls the next frame when the previous one is written. Steps that arrive in the meantime share a frame, and
 * an idle stream sends at once.
 */
export class AppendStream {
  readonly #plan: StreamPlan;
  readonly #abort = new AbortController();
  readonly #silence: Silence;
  /** Index of the next step to send on this stream. */
  #cursor: number;
  #bytesInFlight = 0;
  #openSent = false;
  #opened = false;
  #sealSent = false;
  #finishing = false;
  #ended = false;
  /** The transport's pending pull, if nothing could be sent when it came. */
  #pull: ((result: IteratorResult<AppendStepsRequest, undefined>) => void) | undefined;
  #wakeQueued = false;

  constructor(plan: StreamPlan) {
    this.#plan = plan;
    this.#cursor = plan.queue.acked;
    this.#silence = new Silence(plan.silenceMs, (error) => this.abort(error));
  }

  /** Resolves when the server ends the stream with OK. The result is the server's `sealed` message, if it sent one. */
  async run(): Promise<AppendSealed | undefined> {
    let sealed: AppendSealed | undefined;
    try {
      this.#silence.expect();
      const responses = this.#plan.client.trajectories.appendSteps(this.#frames(), { signal: this.#abort.signal });
      for await (const response of responses) {
        sealed = this.#take(response) ?? sealed;
        if (this.#owed()) this.#silence.restart();
        else this.#silence.pause();
      }
      return sealed;
    } finally {
      this.#end();
    }
  }

  /** Index of the next step to send on this stream. */
  get cursor(): number {
    return this.#cursor;
  }

  /** Notifies the stream that there may be something to send: steps, uploaded bytes or a seal. */
  wake(): void {
    if (this.#pull === undefined || this.#wakeQueued) return;
    // Waits for the caller's synchronous code, so that steps appended together share a frame.
    this.#wakeQueued = true;
    queueMicrotask(() => {
      this.#wakeQueued = false;
      this.#answerPull();
    });
  }

  /** Half-closes the stream when everything is sent. The server answers by ending the stream. */
  finish(): void {
    this.#finishing = true;
    this.#silence.expect();
    this.wake();
  }

  abort(error: Error): void {
    this.#abort.abort(error);
  }

  #frames(): AsyncIterable<AppendStepsRequest> {
    const next = (): Promise<IteratorResult<AppendStepsRequest, undefined>> => {
      const result = this.#nextFrame();
      if (result !== undefined) return Promise.resolve(result);
      return new Promise((resolve) => {
        this.#pull = resolve;
      });
    };
    const stop = (): Promise<IteratorResult<AppendStepsRequest, undefined>> => {
      this.#endFrames();
      return Promise.resolve(DONE);
    };
    return { [Symbol.asyncIterator]: () => ({ next, return: stop }) };
  }

  #answerPull(): void {
    const result = this.#pull === undefined ? undefined : this.#nextFrame();
    if (result === undefined) return;
    this.#pull?.(result);
    this.#pull = undefined;
  }

  #nextFrame(): IteratorResult<AppendStepsRequest, undefined> | undefined {
    if (this.#ended || this.#sealSent) return DONE;
    if (!this.#openSent) {
      this.#openSent = true;
      return { done: false, value: create(AppendStepsRequestSchema, { open: this.#plan.open }) };
    }
    if (!this.#opened) return undefined;
    const frame = this.#stepsFrame();
    if (frame !== undefined) {
      this.#silence.expect();
      return { done: false, value: frame };
    }
    return this.#finishing && this.#allSent() ? DONE : undefined;
  }

  #stepsFrame(): AppendStepsRequest | undefined {
    const frame = create(AppendStepsRequestSchema);
    const { fields, bytes } = this.#gather();
    // The steps are encoded already. The library writes "unknown" fields unchanged, under their field number.
    if (fields.length > 0) frame.$unknown = fields;
    const seal = bytes < FRAME_BYTES && this.#allSent() ? this.#plan.seal() : undefined;
    if (seal !== undefined) {
      frame.seal = create(SealSchema, seal);
      this.#sealSent = true;
    }
    return fields.length > 0 || seal !== undefined ? frame : undefined;
  }

  /** Returns the next steps that are ready and fit into the window. */
  #gather(): { fields: Entry['field'][]; bytes: number } {
    const { queue, maxUnackedSteps, maxUnackedBytes, isolatedBelow } = this.#plan;
    const fields: Entry['field'][] = [];
    const isolating = queue.acked < isolatedBelow;
    // Steps that share a frame wait until those before them are acked.
    if (isolating && this.#cursor >= isolatedBelow) return { fields, bytes: 0 };
    const maxSteps = isolating ? 1 : FRAME_STEPS;
    const frameBytes = Math.min(FRAME_BYTES, this.#plan.client.limits.current.stepBytes);
    let bytes = 0;
    while (!this.#allSent() && fields.length < maxSteps && this.#cursor - queue.acked < maxUnackedSteps) {
      const entry = queue.at(this.#cursor);
      const size = entry.field.data.byteLength;
      if (!entry.ready || (bytes > 0 && bytes + size > frameBytes)) break;
      if (this.#bytesInFlight > 0 && this.#bytesInFlight + size > maxUnackedBytes) break;
      fields.push(entry.field);
      bytes += size;
      this.#bytesInFlight += size;
      this.#cursor += 1;
    }
    return { fields, bytes };
  }

  #allSent(): boolean {
    return this.#cursor === this.#plan.queue.size;
  }

  /** Whether the server owes an answer. */
  #owed(): boolean {
    return !this.#opened || this.#finishing || this.#sealSent || this.#plan.queue.acked < this.#cursor;
  }

  #take(response: AppendStepsResponse): AppendSealed | undefined {
    if (response.opened !== undefined) this.#takeOpened(response.opened);
    else if (!this.#opened) throw protocolError('answered before it accepted the stream');
    if (response.ack !== undefined) this.#takeAck(response.ack.nextStepNumber);
    if (response.sealed === undefined) return undefined;
    if (!this.#sealSent) throw protocolError('reported a seal that this writer did not request');
    if (response.sealed.nextStepNumber !== this.#plan.queue.numberOf(this.#plan.queue.size)) {
      throw protocolError(
        `sealed the trajectory at ${response.sealed.nextStepNumber}, not after this writer's last step`,
      );
    }
    this.#takeAck(response.sealed.nextStepNumber);
    return response.sealed;
  }

  #takeOpened(opened: AppendOpened): void {
    if (this.#opened) throw protocolError('accepted one stream twice');
    this.#plan.onOpened(opened);
    this.#opened = true;
    this.wake();
  }

  #takeAck(nextStepNumber: bigint): void {
    const { queue } = this.#plan;
    const seq = queue.indexOf(nextStepNumber);
    if (seq < queue.acked) {
      throw protocolError(
        `acked steps below ${nextStepNumber} after it had acked those below ${queue.numberOf(queue.acked)}`,
      );
    }
    if (seq > this.#cursor) {
      const sent = queue.numberOf(this.#cursor);
      throw protocolError(`acked steps below ${nextStepNumber}, but this stream sent only those below ${sent}`);
    }
    if (seq === queue.acked) return;
    this.#bytesInFlight -= queue.ackTo(seq);
    this.#plan.onAcked();
    this.wake();
  }

  /** Releases everything that the stream holds. */
  #end(): void {
    this.#endFrames();
    this.#silence.stop();
    this.#abort.abort(new ConnectError('the stream ended', Code.Canceled));
  }

  /** The transport's pull would otherwise wait forever and keep this stream in memory. */
  #endFrames(): void {
    this.#ended = true;
    this.#pull?.(DONE);
    this.#pull = undefined;
  }
}

/**
 * Reports an answer that no correct server sends. To continue could lose steps, or treat steps of another writer as
 * this writer's.
 */
export function protocolError(what: string): ConnectError {
  return new ConnectError(`the server ${what}; the writer has failed to avoid losing steps`, Code.DataLoss);
}
