import type { MessageInitShape } from '@bufbuild/protobuf';
import { create } from '@bufbuild/protobuf';
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

/** What one stream is to do. */
export interface StreamPlan {
  readonly client: AnabranchClient;
  readonly queue: StepQueue;
  readonly open: MessageInitShape<typeof AppendOpenSchema>;
  /** Checks and takes the grant; what it throws ends the stream. */
  readonly onOpened: (opened: AppendOpened) => void;
  /** Called whenever an ack moved the end. */
  readonly onAcked: () => void;
  /** The seal to send after the last step, once there is one. */
  readonly seal: () => { status: SealStatus; message: string } | undefined;
  readonly maxUnackedSteps: number;
  readonly maxUnackedBytes: number;
  /** One step a frame: a refusal then hits one step alone. */
  readonly oneByOne: boolean;
  readonly silenceMs: number;
}

/** Frames aim at this size; only a single larger step makes a larger one. */
const FRAME_BYTES = 256 * 1024;
const FRAME_STEPS = 1024;

const DONE: IteratorReturnResult<undefined> = { done: true, value: undefined };

/**
 * One life of the append stream: open, replay from the first unacked step, then whatever the queue gets. Connect pulls the
 * next frame when the one before was written, so what gathers meanwhile goes out together, and an idle stream sends at once.
 */
export class AppendStream {
  readonly #plan: StreamPlan;
  readonly #abort = new AbortController();
  readonly #silence: Silence;
  /** Place of the next step to send on this stream. */
  #cursor: number;
  #bytesInFlight = 0;
  #openSent = false;
  #opened = false;
  #sealSent = false;
  #finishing = false;
  #ended = false;
  /** Connect's waiting pull, if it came before there was something to send. */
  #pull: ((result: IteratorResult<AppendStepsRequest, undefined>) => void) | undefined;
  #wakeQueued = false;

  constructor(plan: StreamPlan) {
    this.#plan = plan;
    this.#cursor = plan.queue.acked;
    this.#silence = new Silence(plan.silenceMs, (error) => this.abort(error));
  }

  /** Resolves when the server ended the stream with OK: with its `sealed`, if it sent one. */
  async run(): Promise<AppendSealed | undefined> {
    let sealed: AppendSealed | undefined;
    try {
      this.#silence.expect();
      const responses = this.#plan.client.trajectories.appendSteps(this.#frames(), { signal: this.#abort.signal });
      for await (const response of responses) {
        sealed = this.#take(response) ?? sealed;
        if (this.#owed()) this.#silence.heard();
        else this.#silence.rest();
      }
      return sealed;
    } finally {
      this.#end();
    }
  }

  /** There may be something to send: more steps, uploaded bytes, a seal. */
  wake(): void {
    if (this.#pull === undefined || this.#wakeQueued) return;
    // After the caller's synchronous run, so that steps appended in one go share a frame.
    this.#wakeQueued = true;
    queueMicrotask(() => {
      this.#wakeQueued = false;
      this.#answerPull();
    });
  }

  /** Half-closes once everything is sent; the server answers by ending the stream. */
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
    // Connect wants both: it throws in what broke the writing. The reading side reports the same, so that is where it is told.
    const stop = (): Promise<IteratorResult<AppendStepsRequest, undefined>> => {
      this.#endFrames();
      return Promise.resolve(DONE);
    };
    return { [Symbol.asyncIterator]: () => ({ next, return: stop, throw: stop }) };
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
    // The steps are encoded already; as fields "unknown" to the library they are written as they are, under their number.
    if (fields.length > 0) frame.$unknown = fields;
    const seal = bytes < FRAME_BYTES && this.#allSent() ? this.#plan.seal() : undefined;
    if (seal !== undefined) {
      frame.seal = create(SealSchema, seal);
      this.#sealSent = true;
    }
    return fields.length > 0 || seal !== undefined ? frame : undefined;
  }

  /** The next steps that are ready and for which the window has room. */
  #gather(): { fields: Entry['field'][]; bytes: number } {
    const { queue, maxUnackedSteps, maxUnackedBytes, oneByOne } = this.#plan;
    const fields: Entry['field'][] = [];
    const most = oneByOne ? 1 : FRAME_STEPS;
    let bytes = 0;
    while (!this.#allSent() && fields.length < most && this.#cursor - queue.acked < maxUnackedSteps) {
      const entry = queue.at(this.#cursor);
      const size = entry.field.data.byteLength;
      if (!entry.ready || (bytes > 0 && bytes + size > FRAME_BYTES)) break;
      if (this.#bytesInFlight > 0 && this.#bytesInFlight + size > maxUnackedBytes) break;
      fields.push(entry.field);
      bytes += size;
      this.#bytesInFlight += size;
      this.#cursor += 1;
    }
    return { fields, bytes };
  }

  #allSent(): boolean {
    return this.#cursor === this.#plan.queue.made;
  }

  /** Whether the server has something to answer. */
  #owed(): boolean {
    return !this.#opened || this.#finishing || this.#sealSent || this.#plan.queue.acked < this.#cursor;
  }

  #take(response: AppendStepsResponse): AppendSealed | undefined {
    if (response.opened !== undefined) this.#takeOpened(response.opened);
    else if (!this.#opened) throw misled('answered before it granted the stream');
    if (response.ack !== undefined) this.#takeAck(response.ack.nextStepNumber);
    if (response.sealed === undefined) return undefined;
    if (!this.#sealSent) throw misled('reported a seal that this writer did not ask for');
    if (response.sealed.nextStepNumber !== this.#plan.queue.numberOf(this.#plan.queue.made)) {
      throw misled(`sealed the trajectory at ${response.sealed.nextStepNumber}, not behind this writer's last step`);
    }
    this.#takeAck(response.sealed.nextStepNumber);
    return response.sealed;
  }

  #takeOpened(opened: AppendOpened): void {
    if (this.#opened) throw misled('granted one stream twice');
    this.#plan.onOpened(opened);
    this.#opened = true;
    this.wake();
  }

  #takeAck(nextStepNumber: bigint): void {
    const { queue } = this.#plan;
    const seq = queue.placeOf(nextStepNumber);
    if (seq < queue.acked) {
      throw misled(`acked up to ${nextStepNumber} after it had acked up to ${queue.numberOf(queue.acked)}`);
    }
    if (seq > this.#cursor) {
      const sent = queue.numberOf(this.#cursor);
      throw misled(`acked up to ${nextStepNumber}, but this stream has only sent steps below ${sent}`);
    }
    if (seq === queue.acked) return;
    this.#bytesInFlight -= queue.ackTo(seq);
    this.#plan.onAcked();
    this.wake();
  }

  /** Lets everything go. */
  #end(): void {
    this.#endFrames();
    this.#silence.stop();
    this.#abort.abort(new ConnectError('the stream has ended', Code.Canceled));
  }

  /** Connect's pull would otherwise wait for ever, and hold this stream's memory. */
  #endFrames(): void {
    this.#ended = true;
    this.#pull?.(DONE);
    this.#pull = undefined;
  }
}

/** The server said what no correct server can say: going on could lose steps or claim another's as ours. */
export function misled(what: string): ConnectError {
  return new ConnectError(`the server ${what}; the writer stops here`, Code.DataLoss);
}
