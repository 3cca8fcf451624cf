import type { Readable } from 'node:stream';
import type { Slot, SlotQueue } from '../queue/slot_queue.ts';
import { cutForSlots, EnvelopeCollector, isEnveloped, MessageBytes, weightOf } from './body.ts';
import { Connection } from './connections.ts';
import { HEADER_BYTES, isCompressed } from './envelope.ts';
import { requireHeap } from './heap.ts';
import type { UnfinishedMessage, UnfinishedMessages } from './unfinished.ts';

/** Shared by the requests of a port. */
export interface IntakeOptions {
  /** Larger messages are passed on as soon as their size is known, for the decoder to reject. */
  readonly maxMessageBytes: number;
  /**
   * Limits the bytes of messages that are decoded at once, over all requests. A decoded message can be hundreds of
   * times as large as its bytes: 131,072 empty steps fit into 256 KiB. Decoding also blocks the event loop.
   */
  readonly decodeQueue: SlotQueue;
  readonly unfinished: UnfinishedMessages;
}

type Headers = { readonly [name: string]: string | readonly string[] | undefined };

/**
 * Receives the messages of one request, whole: as an iteration, or the only one. Either fails if a message takes too
 * long to become complete. Large and compressed messages wait for their slot to be decoded. `close` releases everything
 * that an intake holds.
 */
export class Intake {
  readonly #options: IntakeOptions;
  readonly #reader: BodyReader;
  readonly #unfinished: UnfinishedMessage;
  readonly #enveloped: boolean;
  readonly #compressed: boolean;
  #one = false;
  #closed = false;
  #slot: Slot | undefined;
  #room: (() => Promise<void> | undefined) | undefined;
  #principal = '';
  readonly #connection: object;

  /** `connection` identifies the request's connection. */
  constructor(body: Readable, headers: Headers, connection: object, options: IntakeOptions) {
    this.#connection = connection;
    this.#options = options;
    this.#reader = new BodyReader(body);
    this.#unfinished = options.unfinished.ofRequest(connection, (error) => this.#reader.fail(() => error));
    this.#enveloped = isEnveloped(String(headers['content-type']));
    this.#compressed = (headers['content-encoding'] ?? 'identity') !== 'identity';
  }

  /**
   * Declares that the body is one message, which is complete when the body ends. Must be called before the body is
   * read.
   */
  expectOne(): void {
    this.#one = true;
  }

  /**
   * Declares who sends the messages: large ones of several principals are decoded in turn. `isKnown`: with a valid
   * credential.
   */
  isOf(principal: string, isKnown: boolean): void {
    this.#principal = principal;
    if (!isKnown) return;
    this.#unfinished.principal = principal;
    if (this.#connection instanceof Connection) this.#connection.becomeKnown();
  }

  /** Declares that each message waits until `room` admits it: undefined at once, else when the promise resolves. */
  waitFor(room: () => Promise<void> | undefined): void {
    this.#room = room;
  }

  /** Ends the slot of the last message: its handler has it, or it cannot be decoded. */
  handOver(): void {
    this.#slot?.end();
    this.#slot = undefined;
  }

  /** Stops reading, because the request is answered or its sender has disconnected. Idempotent. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#reader.fail(requestOver);
    this.#unfinished.end();
    this.handOver();
  }

  /** The messages, in runs of whole ones. */
  messages(): AsyncGenerator<Buffer> {
    if (!this.#enveloped) return this.#bareMessage();
    return this.#one ? this.#singleEnvelope() : this.#envelopes();
  }

  /**
   * Returns the body of a call that sends one message without compression, in an envelope. Its slot lasts until
   * `handOver`. Less work for a small message than an iteration.
   */
  async onlyMessage(): Promise<Buffer> {
    const body = await this.#wholeBody();
    const wait = this.#takeSlot(body, false);
    if (wait !== undefined) await wait;
    return body;
  }

  /** The body is the message. It is decoded after the iteration, so its slot lasts until `handOver`. */
  async *#bareMessage(): AsyncGenerator<Buffer> {
    const body = await this.#wholeBody();
    await this.#takeSlot(body, this.#compressed);
    if (body.length > 0) yield body;
  }

  /** The slot of the message lasts until `handOver`, too. */
  async *#singleEnvelope(): AsyncGenerator<Buffer> {
    const body = await this.#wholeBody();
    for (const part of cutForSlots(body)) {
      await this.#takeSlot(part, isCompressed(part, 0));
      yield part;
    }
  }

  async *#envelopes(): AsyncGenerator<Buffer> {
    const collector = new EnvelopeCollector(this.#options.maxMessageBytes);
    try {
      for (let piece = await this.#reader.next(); piece !== undefined; piece = await this.#reader.next()) {
        const runs = collector.add(piece);
        if (runs.length > 0) this.#unfinished.end();
        for (const run of runs) {
          for (const part of cutForSlots(run)) {
            await this.#takeSlot(part, isCompressed(part, 0));
            yield part;
          }
        }
        if (collector.heldBytes > 0) await this.#hold(collector.heldBytes);
      }
      if (collector.heldBytes > 0) yield collector.take();
    } finally {
      this.#endReading();
      this.handOver();
    }
  }

  /** Returns the body, or its beginning as soon as it exceeds the maximum size of a message. */
  async #wholeBody(): Promise<Buffer> {
    const largest = HEADER_BYTES + this.#options.maxMessageBytes;
    const body = new MessageBytes();
    try {
      for (let piece = this.#reader.take(); piece !== undefined; piece = this.#reader.take()) {
        if (piece === null) {
          await this.#reader.change();
          continue;
        }
        body.add(piece, largest);
        if (body.length > largest || (this.#enveloped && body.envelopeBytes() > largest)) break;
        const wait = this.#hold(body.length);
        if (wait !== undefined) await wait;
      }
      return body.take();
    } finally {
      this.#endReading();
    }
  }

  /** Waits if there is no room for more bytes of unfinished messages. */
  #hold(bytes: number): Promise<void> | undefined {
    if (this.#closed) throw requestOver();
    return this.#unfinished.hold(bytes);
  }

  #endReading(): void {
    this.#unfinished.end();
    this.#reader.release();
  }

  /** Ends the previous slot, and waits for room, and for the next slot if the message needs one. */
  #takeSlot(message: Buffer, compressed: boolean): Promise<void> | undefined {
    this.handOver();
    const weight = weightOf(message, compressed, this.#options.maxMessageBytes);
    const room = this.#room?.();
    if (weight === 0 && room === undefined) return void requireHeap(message.length);
    return this.#waitForSlot(Math.max(weight, message.length), weight, room);
  }

  async #waitForSlot(bytes: number, weight: number, room: Promise<void> | undefined): Promise<void> {
    await room;
    if (this.#closed) throw requestOver();
    if (weight > 0) {
      this.#slot = this.#options.decodeQueue.enter(weight, this.#principal);
      if (!(await this.#slot.begun)) throw requestOver();
    }
    try {
      requireHeap(bytes);
    } catch (error) {
      this.handOver();
      throw error;
    }
  }
}

/** Uses Node's code for a stream that was closed too early. */
function requestOver(): Error {
  return Object.assign(new Error('the request is over'), { code: 'ERR_STREAM_PREMATURE_CLOSE' });
}

/**
 * Reads the body of a request piece by piece on demand, so that flow control slows down senders. A pending read can be
 * made to fail, unlike that of a Readable's iterator. The request is not destroyed then, because it still needs an
 * answer.
 */
class BodyReader {
  readonly #body: Readable;
  #failure: (() => Error) | undefined;
  #listening = false;
  #wake: (() => void) | undefined;

  constructor(body: Readable) {
    this.#body = body;
  }

  /**
   * Returns the next piece, or undefined at the end of the body. Waits if there is neither. Only one read at a time.
   */
  async next(): Promise<Buffer | undefined> {
    for (;;) {
      const piece = this.take();
      if (piece !== null) return piece;
      await this.change();
    }
  }

  /** Returns the next piece, undefined at the end of the body, or null if there is neither yet. */
  take(): Buffer | null | undefined {
    if (this.#failure !== undefined) throw this.#failure();
    const piece: Buffer | null = this.#body.read();
    return piece === null && this.#body.readableEnded ? undefined : piece;
  }

  /** Resolves when `take` may return something else. */
  change(): Promise<void> {
    return this.#listening ? this.#nextChange() : this.#firstChange();
  }

  /**
   * Makes the pending read and all later reads fail. The first failure wins. The error is created only if there is a
   * read.
   */
  fail(failure: () => Error): void {
    this.#failure ??= failure;
    this.release();
    this.#onChange();
  }

  /** Removes the listeners. The rest of the body can be resumed or read again. */
  release(): void {
    if (!this.#listening) return;
    this.#listening = false;
    this.#body.off('readable', this.#onChange);
    this.#body.off('end', this.#onChange);
  }

  /** The end of a body that has arrived whole shows in the next microtask. Listeners cost more. */
  async #firstChange(): Promise<void> {
    await undefined;
    if (this.#failure === undefined && !this.#body.readableEnded) await this.#nextChange();
  }

  #nextChange(): Promise<void> {
    return new Promise((resolve) => {
      this.#wake = resolve;
      if (this.#listening) return;
      this.#listening = true;
      this.#body.on('readable', this.#onChange);
      this.#body.on('end', this.#onChange);
    });
  }

  readonly #onChange = () => {
    const wake = this.#wake;
    this.#wake = undefined;
    wake?.();
  };
}
