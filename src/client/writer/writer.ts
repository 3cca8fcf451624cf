import type { MessageInitShape } from '@bufbuild/protobuf';
import { timestampDate } from '@bufbuild/protobuf/wkt';
import { Code, ConnectError } from '@connectrpc/connect';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import type {
  AppendOpened,
  AppendOpenSchema,
  AppendSealed,
  TrajectoryCreation,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { AnabranchClient } from '../connection.ts';
import { isTransient, Patience, type Pause, systemTiming, type Timing } from '../retry.ts';
import { putState } from '../states.ts';
import { type EncodedStep, encodeStep, type StepInit } from '../step.ts';
import {
  type AppendResult,
  creationOf,
  type Sealed,
  type SealStatus,
  type Settings,
  settingsOf,
  type TrajectoryWriter,
  type WriterOptions,
} from './contract.ts';
import { judge, type Verdict } from './policy.ts';
import { Deferred, type Entry, StepQueue } from './queue.ts';
import { AppendStream, protocolError } from './stream.ts';
import { Uploads } from './uploads.ts';

/** How long close() waits for the end of the stream when everything is durable already. */
const GOODBYE_MS = 5_000;
const SEAL_MESSAGE_MAX_BYTES = 4096;

interface PendingSeal {
  readonly seal: { readonly status: SealStatus; readonly message: string };
  readonly outcome: Deferred<Sealed>;
}

/**
 * Opens a trajectory for writing. Resolves when the server grants an epoch. Waits up to `giveUpAfterMs` for a server
 * that is not reachable yet; `signal` ends the wait earlier. Rejects with permanent errors such as
 * TRAJECTORY_NOT_FOUND.
 */
export async function openWriter(client: AnabranchClient, options: WriterOptions): Promise<TrajectoryWriter> {
  const writer = new Writer(client, options, systemTiming());
  await writer.opened();
  return writer;
}

export class Writer implements TrajectoryWriter {
  readonly trajectoryId: string;
  readonly writerId: string;
  readonly #client: AnabranchClient;
  readonly #options: WriterOptions;
  readonly #settings: Settings;
  readonly #timing: Timing;
  readonly #patience: Patience;
  readonly #queue = new StepQueue();
  readonly #uploads: Uploads;
  readonly #stopped = new AbortController();
  readonly #firstOpened = new Deferred<void>();
  readonly #running: Promise<void>;
  /** Sent until the first grant, always with the same request id. */
  readonly #create: TrajectoryCreation | undefined;
  /** The last grant. Every later opening names it. */
  #grant: AppendOpened | undefined;
  /** Epoch of the other writer that fenced the first opening. */
  #refusedBy: bigint | undefined;
  #refusals = 0;
  /** Steps below this index are sent one by one, because one of them was rejected. */
  #isolatedBelow = 0;
  #stream: AppendStream | undefined;
  #seal: PendingSeal | undefined;
  #closing = false;
  #failure: Error | undefined;
  /** Set while a writer without a stream waits for work. */
  #work: Deferred<void> | undefined;
  /** Set while callers of ready() wait. */
  #room: Deferred<void> | undefined;

  constructor(client: AnabranchClient, options: WriterOptions, timing: Timing) {
    this.trajectoryId = options.trajectoryId;
    this.writerId = options.writerId ?? crypto.randomUUID();
    this.#client = client;
    this.#options = options;
    this.#settings = settingsOf(options);
    this.#create = options.create && creationOf(options.create, options.trajectoryId);
    this.#timing = timing;
    this.#patience = new Patience(this.#settings.giveUpAfterMs, timing);
    const effort = { giveUpAfterMs: this.#settings.giveUpAfterMs, timing, signal: this.#stopped.signal };
    this.#uploads = new Uploads((upload) => putState(client, upload, effort));
    this.#running = this.#run();
  }

  opened(): Promise<void> {
    return this.#firstOpened.promise;
  }

  get epoch(): bigint {
    return this.#grant?.epoch ?? 0n;
  }

  get uid(): string {
    return this.#grant?.uid ?? '';
  }

  get status(): Status {
    return this.#grant?.status ?? Status.UNSPECIFIED;
  }

  get nextStepNumber(): bigint {
    return this.#queue.numberOf(this.#queue.size);
  }

  get ackedNextStepNumber(): bigint {
    return this.#queue.numberOf(this.#queue.acked);
  }

  append(init: StepInit): Promise<AppendResult> {
    const refusal = this.#refusal();
    if (refusal !== undefined) return reportedElsewhere(Promise.reject(refusal));
    let step: EncodedStep;
    try {
      step = encodeStep(init, this.nextStepNumber, this.#client.limits.current);
    } catch (error) {
      return Promise.reject(error);
    }
    const entry = this.#queue.add(step.bytes, step.uploads.length === 0);
    if (entry.ready) this.#wake();
    else this.#sendAfter(this.#uploads.add(step.uploads), entry);
    return entry.stored.promise;
  }

  async ready(): Promise<void> {
    while (!this.#hasRoom() && this.#failure === undefined) {
      this.#room ??= new Deferred();
      await this.#room.promise;
    }
    if (this.#failure !== undefined) throw this.#failure;
  }

  async flush(): Promise<void> {
    if (this.#failure !== undefined) throw this.#failure;
    if (this.#queue.waiting > 0) await this.#queue.at(this.#queue.size - 1).stored.promise;
  }

  async seal(status: SealStatus, message = ''): Promise<Sealed> {
    const refusal = this.#refusal();
    if (refusal !== undefined) throw refusal;
    const size = Buffer.byteLength(message);
    if (size > SEAL_MESSAGE_MAX_BYTES) {
      throw new ConnectError(
        `message of the seal has ${size} bytes: expected at most ${SEAL_MESSAGE_MAX_BYTES}`,
        Code.InvalidArgument,
      );
    }
    this.#seal = { seal: { status, message }, outcome: new Deferred() };
    this.#wake();
    return await this.#seal.outcome.promise;
  }

  async close(): Promise<void> {
    this.#closing = true;
    await this.flush();
    if (this.#seal !== undefined) await this.#seal.outcome.promise;
    this.#stream?.finish();
    this.#wake();
    const goodbye = setTimeout(() => this.#stream?.abort(new ConnectError('closed', Code.Canceled)), GOODBYE_MS);
    await this.#running;
    clearTimeout(goodbye);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** Returns the error for calls that the writer no longer accepts. */
  #refusal(): Error | undefined {
    if (this.#failure !== undefined) return this.#failure;
    if (this.#seal !== undefined)
      return new ConnectError('this writer has sealed its trajectory', Code.FailedPrecondition);
    if (this.#closing) return new ConnectError('this writer is closed', Code.FailedPrecondition);
    return undefined;
  }

  #hasRoom(): boolean {
    const { maxUnackedSteps, maxUnackedBytes } = this.#settings;
    return (
      this.#queue.waiting < maxUnackedSteps && this.#queue.waitingBytes + this.#uploads.waitingBytes < maxUnackedBytes
    );
  }

  #wake(): void {
    this.#stream?.wake();
    this.#work?.resolve();
    this.#work = undefined;
  }

  /** The step's number is assigned already. If its bytes cannot be uploaded, no later step can be stored either. */
  #sendAfter(uploaded: Promise<void>, entry: Entry): void {
    const send = () => {
      entry.ready = true;
      this.#wake();
    };
    uploaded.then(send, (error) => this.#fail(error));
  }

  /** Runs one stream after another while there is work. */
  async #run(): Promise<void> {
    const aborted = () => this.#fail(this.#options.signal?.reason);
    this.#options.signal?.addEventListener('abort', aborted, { once: true });
    try {
      this.#options.signal?.throwIfAborted();
      while (await this.#hasWork()) {
        if (await this.#runStream()) return;
      }
    } catch (error) {
      this.#fail(error);
    } finally {
      this.#options.signal?.removeEventListener('abort', aborted);
    }
  }

  #idle(): boolean {
    return this.#grant !== undefined && this.#queue.waiting === 0 && this.#seal === undefined;
  }

  /** Waits for work. Returns false when there will be none. A lost stream is reopened only when it is needed. */
  async #hasWork(): Promise<boolean> {
    while (this.#idle() && this.#failure === undefined) {
      if (this.#closing) return false;
      this.#work = new Deferred();
      await this.#work.promise;
    }
    return this.#failure === undefined;
  }

  /** Runs one append stream. Returns true if it was the last one. */
  async #runStream(): Promise<boolean> {
    const stream = new AppendStream({
      client: this.#client,
      queue: this.#queue,
      open: this.#open(),
      onOpened: (opened) => this.#takeGrant(opened),
      onAcked: () => this.#takeAck(),
      seal: () => this.#seal?.seal,
      maxUnackedSteps: this.#settings.maxUnackedSteps,
      maxUnackedBytes: this.#settings.maxUnackedBytes,
      isolatedBelow: this.#isolatedBelow,
      silenceMs: this.#settings.silenceMs,
    });
    this.#stream = stream;
    if (this.#closing) stream.finish();
    try {
      const sealed = await stream.run();
      if (sealed !== undefined) this.#takeSealed(sealed);
      if (sealed !== undefined || (this.#closing && this.#idle())) return true;
      throw new ConnectError('the server ended the stream', Code.Unavailable);
    } catch (error) {
      if (this.#failure !== undefined) throw this.#failure;
      // Everything is durable, so an error at the end of the stream has no effect.
      if (this.#closing && this.#idle()) return true;
      await this.#recover(asError(error), stream.cursor);
      return false;
    } finally {
      this.#stream = undefined;
    }
  }

  #open(): MessageInitShape<typeof AppendOpenSchema> {
    const { trajectoryId, writerId } = this;
    if (this.#grant !== undefined) {
      return { trajectoryId, writerId, uid: this.#grant.uid, takeOverEpoch: this.#grant.epoch };
    }
    const { uid = '', expectedNextStepNumber } = this.#options;
    return {
      trajectoryId,
      writerId,
      uid,
      ...(this.#create === undefined ? {} : { create: this.#create }),
      ...(this.#refusedBy === undefined ? {} : { takeOverEpoch: this.#refusedBy }),
      ...(expectedNextStepNumber === undefined ? {} : { expectedNextStepNumber }),
    };
  }

  /** Accepts a grant only if it is consistent with what this writer has sent and received (rule W12). */
  #takeGrant(opened: AppendOpened): void {
    if (this.#grant === undefined) this.#queue.startAt(opened.nextStepNumber);
    else this.#checkGrant(opened, this.#grant);
    this.#grant = opened;
    this.#refusals = 0;
    if (this.#idle()) this.#patience.progress();
    const replaying = this.nextStepNumber - this.ackedNextStepNumber;
    const { epoch, nextStepNumber } = opened;
    this.#options.onEvent?.({ type: 'opened', epoch, nextStepNumber, replaying });
    this.#firstOpened.resolve();
  }

  #checkGrant(opened: AppendOpened, last: AppendOpened): void {
    const end = this.#queue.indexOf(opened.nextStepNumber);
    if (opened.epoch <= last.epoch) throw protocolError(`granted epoch ${opened.epoch} after epoch ${last.epoch}`);
    if (end < this.#queue.acked) {
      throw protocolError(
        `has only steps below ${opened.nextStepNumber}, but acked those below ${this.ackedNextStepNumber}`,
      );
    }
    if (end > this.#queue.size) {
      throw protocolError(
        `has steps below ${opened.nextStepNumber}, but this writer appended only those below ${this.nextStepNumber}`,
      );
    }
  }

  #takeAck(): void {
    this.#patience.progress();
    if (this.#room === undefined || !this.#hasRoom()) return;
    this.#room.resolve();
    this.#room = undefined;
  }

  #takeSealed({ status, message, nextStepNumber, sealTime }: AppendSealed): void {
    const time = sealTime === undefined ? undefined : timestampDate(sealTime);
    this.#seal?.outcome.resolve({ status, message, nextStepNumber, sealTime: time });
  }

  /** Waits before the next opening. Throws if there must be none. `sent`: index of the first step that was not sent. */
  async #recover(error: Error, sent: number): Promise<void> {
    const verdict = judge(error, {
      writerId: this.writerId,
      everOpened: this.#grant !== undefined,
      takeOver: this.#settings.takeOver,
      shared: this.#queue.acked >= this.#isolatedBelow && sent - this.#queue.acked > 1,
    });
    if (verdict.do === 'takeOver') this.#refusedBy = verdict.epoch;
    if (verdict.do === 'isolate') this.#isolatedBelow = sent;
    const { attempt, delayMs } = this.#pause(verdict, error);
    this.#options.onEvent?.({ type: 'cut', error, attempt, retryInMs: delayMs });
    if (delayMs > 0) await this.#timing.sleep(delayMs, this.#stopped.signal);
  }

  /**
   * Returns when to open again. If nothing waits, the next append does so at once, and has all the time until the
   * limit.
   */
  #pause(verdict: Verdict, error: Error): Pause {
    const retries = verdict.do === 'retryOrFail';
    if (this.#idle() && !(retries && !isTransient(error))) return { attempt: 1, delayMs: 0 };
    return retries ? this.#patience.next(error) : this.#patience.nextAfterRefusals(error, this.#refusals++);
  }

  #fail(reason: unknown): void {
    if (this.#failure !== undefined) return;
    const error = asError(reason);
    this.#failure = error;
    this.#queue.failAll(error);
    void reportedElsewhere(this.#firstOpened.promise);
    this.#firstOpened.reject(error);
    if (this.#seal !== undefined) void reportedElsewhere(this.#seal.outcome.promise);
    this.#seal?.outcome.reject(error);
    this.#room?.resolve();
    this.#stopped.abort(error);
    this.#stream?.abort(error);
    this.#wake();
    this.#options.onEvent?.({ type: 'failed', error });
  }
}

/** Keeps an unawaited rejection from ending the process. flush(), close() and every later call report the error too. */
function reportedElsewhere<T>(promise: Promise<T>): Promise<T> {
  promise.catch(() => undefined);
  return promise;
}

function asError(reason: unknown): Error {
  return reason instanceof Error ? reason : ConnectError.from(reason);
}
