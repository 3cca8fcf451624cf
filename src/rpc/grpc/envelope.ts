import { type DescMessage, fromBinary, type Message, toBinary } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import { LIMITS } from '../../domain/limits.ts';

/** Before each message: one byte of flags, four of length. */
export const HEADER_BYTES = 5;
const COMPRESSED = 1;

/** A backstop only: answers are made to stay below 1 MiB. */
const WRITE_MAX_BYTES = 16 * 1024 * 1024;
const NOTHING: Uint8Array = new Uint8Array();

export function encodeMessage(schema: DescMessage, message: Message): Buffer {
  const data = toBinary(schema, message);
  if (data.length > WRITE_MAX_BYTES) throw new Error(`an answer of ${data.length} bytes`);
  const envelope = Buffer.allocUnsafe(HEADER_BYTES + data.length);
  envelope[0] = 0;
  envelope.writeUInt32BE(data.length, 1);
  envelope.set(data, HEADER_BYTES);
  return envelope;
}

/** Errors: ConnectError, in the words that `explainConnectError` knows. */
export function decodeMessage(schema: DescMessage, bytes: Uint8Array): Message {
  try {
    return fromBinary(schema, bytes);
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error);
    throw new ConnectError(`parse binary: ${text}`, Code.InvalidArgument);
  }
}

/** How many bytes the envelope has that begins here, if it can be read. Errors: ConnectError. */
export function envelopeBytes(bytes: Uint8Array, at: number): number {
  if (((bytes[at] ?? 0) & COMPRESSED) !== 0) {
    throw new ConnectError('received compressed envelope, but do not know how to decompress', Code.InvalidArgument);
  }
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(at + 1);
  if (length > LIMITS.messageBytes) {
    throw new ConnectError(`message of ${length} bytes is larger than allowed`, Code.ResourceExhausted);
  }
  return HEADER_BYTES + length;
}

export function incompleteEnvelope(): ConnectError {
  return new ConnectError('protocol error: incomplete envelope', Code.InvalidArgument);
}

/** The messages of a body, each decoded when it is asked for, and then handed over. */
export class Messages implements AsyncIterableIterator<Message, undefined> {
  readonly #pieces: AsyncIterator<Uint8Array>;
  readonly #schema: DescMessage;
  readonly #check: (schema: DescMessage, bytes: Uint8Array) => void;
  readonly #handOver: () => void;
  #piece = NOTHING;
  #at = 0;

  /** `check` throws for a message that must not be decoded. `handOver` ends the turn of a message, whether it could be decoded or not. */
  constructor(
    body: AsyncIterable<Uint8Array>,
    schema: DescMessage,
    check: (schema: DescMessage, bytes: Uint8Array) => void,
    handOver: () => void,
  ) {
    this.#pieces = body[Symbol.asyncIterator]();
    this.#schema = schema;
    this.#check = check;
    this.#handOver = handOver;
  }

  async next(): Promise<IteratorResult<Message, undefined>> {
    for (let value = this.#take(); ; value = this.#take()) {
      if (value !== undefined) return { done: false, value };
      const held = this.#piece.subarray(this.#at);
      const piece = await this.#pieces.next();
      if (piece.done === true) {
        if (held.length > 0) throw incompleteEnvelope();
        return { done: true, value: undefined };
      }
      this.#piece = held.length === 0 ? piece.value : Buffer.concat([held, piece.value]);
      this.#at = 0;
    }
  }

  async return(): Promise<IteratorResult<Message, undefined>> {
    await this.#pieces.return?.();
    return { done: true, value: undefined };
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  #take(): Message | undefined {
    const left = this.#piece.length - this.#at;
    if (left < HEADER_BYTES) return undefined;
    try {
      const size = envelopeBytes(this.#piece, this.#at);
      if (left < size) return undefined;
      // A copy, so that what is kept of a small message does not keep all that came with it.
      const bytes = Uint8Array.prototype.slice.call(this.#piece, this.#at + HEADER_BYTES, this.#at + size);
      this.#at += size;
      this.#check(this.#schema, bytes);
      return decodeMessage(this.#schema, bytes);
    } finally {
      this.#handOver();
    }
  }
}

/** The one message of a body. Errors: ConnectError. */
export async function onlyMessage(messages: Messages): Promise<Message> {
  const first = await messages.next();
  if (first.done === true) {
    throw new ConnectError('protocol error: missing input message for this method', Code.Unimplemented);
  }
  const second = await messages.next();
  if (second.done !== true) {
    throw new ConnectError('protocol error: received extra input message for this method', Code.Unimplemented);
  }
  return first.value;
}
