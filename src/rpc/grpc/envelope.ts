import { create, type DescMessage, fromBinary, type Message, type MessageShape, toBinary } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import {
  AppendBatchRequestSchema,
  AppendEntrySchema,
  AppendStepRequestSchema,
  AppendStepsRequestSchema,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { LIMITS } from '../../domain/limits.ts';
import { PackedFrame } from '../../domain/step_codec/packed_step.ts';
import { passFrame, passStepRequest } from '../../domain/step_codec/pass.ts';
import { envelopeEnd, HEADER_BYTES, isCompressed } from '../../listen/envelope.ts';
import { EncodedResponse } from '../../service/answer/encoded.ts';
import { PackedRequest, packBatch } from '../../service/trajectory/packed_request.ts';
import { type Intake, isLargeInMemory, type Received } from '../http.ts';
import type { MessageGuard } from '../message_guard.ts';

/** A safety limit only: responses are built to stay below 1 MiB. */
const WRITE_MAX_BYTES = 16 * 1024 * 1024;
const NOTHING: Uint8Array = new Uint8Array();

/** A message in its envelope, in pieces that are written one after the other. */
export interface Envelope {
  readonly length: number;
  readonly pieces: readonly Uint8Array[];
}

/** Large pieces of a response are not copied. */
export function encodeMessage(schema: DescMessage, message: Message | EncodedResponse): Envelope {
  const [data, more] = message instanceof EncodedResponse ? message.parts : [toBinary(schema, message), NOTHING];
  const length = data.length + more.length;
  if (length > WRITE_MAX_BYTES) throw new Error(`a response of ${length} bytes is too large`);
  const isSmall = length < COPIED_BYTES;
  const first = Buffer.allocUnsafe(HEADER_BYTES + (isSmall ? length : 0));
  first[0] = 0;
  first.writeUInt32BE(length, 1);
  if (!isSmall) return { length: HEADER_BYTES + length, pieces: joinSmall([first, data, more]) };
  first.set(data, HEADER_BYTES);
  first.set(more, HEADER_BYTES + data.length);
  return { length: first.length, pieces: [first] };
}

/** Joins a small piece with the one before it, if that is small, too. */
function joinSmall(all: readonly Uint8Array[]): Uint8Array[] {
  const pieces: Uint8Array[] = [];
  for (const piece of all) {
    const last = pieces.at(-1);
    if (last !== undefined && last.length + piece.length < COPIED_BYTES)
      pieces.splice(-1, 1, Buffer.concat([last, piece]));
    else if (piece.length > 0) pieces.push(piece);
  }
  return pieces;
}

/** Writing one more piece costs more than copying fewer bytes. */
const COPIED_BYTES = 16 * 1024;

/** Errors: ConnectError, with a message that `explainConnectError` recognises. */
function decodeMessage<Desc extends DescMessage>(schema: Desc, bytes: Uint8Array): MessageShape<Desc> {
  try {
    return fromBinary(schema, bytes);
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error);
    throw new ConnectError(`parse binary: ${text}`, Code.InvalidArgument);
  }
}

/**
 * The messages of a body, each decoded when it is asked for. Its slot ends then, or, if it is large in memory, when the
 * next one is asked for. Each piece of a body begins with an envelope.
 */
export class Messages implements AsyncIterableIterator<Received, undefined> {
  readonly #intake: Intake;
  readonly #schema: DescMessage;
  readonly #guard: Pick<MessageGuard, 'check'>;
  #pieces: AsyncIterator<Uint8Array> | undefined;
  #piece = NOTHING;
  #at = 0;

  constructor(intake: Intake, schema: DescMessage, guard: Pick<MessageGuard, 'check'>) {
    this.#intake = intake;
    this.#schema = schema;
    this.#guard = guard;
  }

  /** Ends the slot of the last message. Idempotent. */
  handOver(): void {
    this.#intake.handOver();
  }

  next(): Promise<IteratorResult<Received, undefined>> {
    this.handOver();
    return this.#next();
  }

  /** Returns the only message of the body, and keeps its slot if it is large in memory. Errors: ConnectError. */
  async only(): Promise<Received> {
    this.#piece = await this.#intake.onlyMessage();
    if (this.#piece.length === 0) {
      throw new ConnectError('protocol error: missing input message for this method', Code.Unimplemented);
    }
    const message = this.#take();
    if (this.#at < this.#piece.length) {
      this.#take();
      throw new ConnectError('protocol error: received extra input message for this method', Code.Unimplemented);
    }
    // A call that waits keeps only the copy that its message needs.
    this.#piece = NOTHING;
    return message;
  }

  async return(): Promise<IteratorResult<Received, undefined>> {
    await this.#pieces?.return?.();
    return { done: true, value: undefined };
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async #next(): Promise<IteratorResult<Received, undefined>> {
    while (this.#at === this.#piece.length) {
      // A stream that waits keeps no piece in memory.
      this.#piece = NOTHING;
      this.#at = 0;
      this.#pieces ??= this.#intake.messages()[Symbol.asyncIterator]();
      const piece = await this.#pieces.next();
      if (piece.done === true) return { done: true, value: undefined };
      this.#piece = piece.value;
    }
    return { done: false, value: this.#take() };
  }

  #take(): Received {
    const begin = this.#at + HEADER_BYTES;
    let keepsSlot = false;
    try {
      const end = envelopeEnd(this.#piece, this.#at);
      requireReadable(this.#piece, this.#at, end - begin);
      // A copy, so that a small message does not keep the whole chunk that it arrived with in memory.
      const bytes = Uint8Array.prototype.slice.call(this.#piece, begin, end);
      this.#at = end;
      const received = this.#receive(bytes);
      keepsSlot = isLargeInMemory(received);
      return received;
    } finally {
      if (!keepsSlot) this.handOver();
    }
  }

  /** Decodes the message, unless the pass over its bytes is enough. */
  #receive(bytes: Uint8Array): Received {
    const schema = this.#schema;
    const decode = () => {
      this.#guard.check(schema, bytes);
      return decodeMessage(schema, bytes);
    };
    switch (schema) {
      case AppendStepsRequestSchema: {
        const steps = passFrame(bytes);
        return steps === undefined ? decode() : new PackedFrame(steps, bytes.length);
      }
      case AppendStepRequestSchema: {
        const entry = passStepRequest(bytes);
        return entry === undefined ? decode() : new PackedRequest([entry], decode);
      }
      case AppendBatchRequestSchema: {
        const decodeEntries = (entries: readonly Uint8Array[]) => {
          this.#guard.check(schema, bytes);
          const decoded = entries.map((entry) => decodeMessage(AppendEntrySchema, entry));
          return create(AppendBatchRequestSchema, { entries: decoded });
        };
        return packBatch(bytes, decodeEntries) ?? decode();
      }
      default:
        return decode();
    }
  }
}

/** Errors: ConnectError, with a message that `explainConnectError` recognises. */
function requireReadable(piece: Uint8Array, at: number, length: number): void {
  const left = piece.length - at - HEADER_BYTES;
  if (left >= 0 && isCompressed(piece, at)) {
    throw new ConnectError('received compressed envelope, but do not know how to decompress', Code.InvalidArgument);
  }
  if (length > LIMITS.messageBytes) {
    throw new ConnectError(`message of ${length} bytes is larger than allowed`, Code.ResourceExhausted);
  }
  if (length > left) throw new ConnectError('protocol error: incomplete envelope', Code.InvalidArgument);
}
