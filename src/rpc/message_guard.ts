import { AsyncLocalStorage } from 'node:async_hooks';
import type { DescMessage } from '@bufbuild/protobuf';
import { ConnectError } from '@connectrpc/connect';
import type { Compression, UniversalServerRequest } from '@connectrpc/connect/protocol';
import { compressionBrotli, compressionGzip } from '@connectrpc/connect-node';
import { AnabranchError } from '../domain/errors.ts';
import { LIMITS } from '../domain/limits.ts';
import { envelopeEnd, HEADER_BYTES, isCompressed } from '../listen/envelope.ts';
import { codeOf, toReadError } from './errors.ts';
import { ENVELOPE } from './refusal.ts';
import { ValueCount } from './value_count.ts';

/** An envelope's first byte has two flags: compressed, and the end of a stream. */
const MOST_FLAGS = 3;

/** The format of the messages of a request. */
interface Form {
  readonly schema: DescMessage;
  readonly json: boolean;
}

/**
 * Rejects messages with too many values before they are decoded: half a million empty messages fit into 1 MiB. Connect
 * has no hook for this, so plain messages are checked in the body, and compressed ones after they are decompressed.
 */
export class MessageGuard {
  readonly #mostValues: number;
  readonly #values: ValueCount;
  readonly #form = new AsyncLocalStorage<Form>();

  constructor(mostValues: number) {
    this.#mostValues = mostValues;
    this.#values = new ValueCount(mostValues);
  }

  /** The compressions that requests can use. Within `guard`, they check what they decompress. */
  readonly compressions: Compression[] = [compressionGzip, compressionBrotli].map((compression) => ({
    ...compression,
    decompress: async (bytes, maxBytes) => {
      const message = await compression.decompress(bytes, maxBytes);
      const form = this.#form.getStore();
      if (form !== undefined) this.#check(form, message);
      return message;
    },
  }));

  /**
   * Serves the request and checks its messages. Reading it can throw MESSAGE_TOO_LARGE, after the previous messages.
   */
  guard<T>(
    request: UniversalServerRequest,
    schema: DescMessage,
    serve: (guarded: UniversalServerRequest) => Promise<T>,
  ): Promise<T> {
    const type = request.header.get('content-type') ?? '';
    const json =
      request.method === 'GET' ? new URL(request.url).searchParams.get('encoding') === 'json' : /json/i.test(type);
    const form: Form = { schema, json };
    return this.#form.run(form, () => serve({ ...request, body: this.#body(request, type, form) }));
  }

  /** Checks a message that is read elsewhere. Errors: MESSAGE_TOO_LARGE, as a ConnectError. */
  check(schema: DescMessage, message: Uint8Array): void {
    this.#check({ schema, json: false }, message);
  }

  #body({ body: raw, header }: UniversalServerRequest, type: string, form: Form): UniversalServerRequest['body'] {
    if (typeof raw !== 'object' || raw === null || !(Symbol.asyncIterator in raw)) return raw;
    const body = explainingErrors(raw);
    if (/^application\/(grpc|connect)/i.test(type)) return this.#envelopes(body, form);
    const compressed = (header.get('content-encoding') ?? 'identity') !== 'identity';
    return compressed ? body : this.#single(body, form);
  }

  /** Every chunk begins with an envelope, up to one that is too large to be read. */
  async *#envelopes(pieces: AsyncIterable<Uint8Array>, form: Form): AsyncGenerator<Uint8Array> {
    let isFirst = true;
    for await (const piece of pieces) {
      // Text after the flags of an envelope would be read as the length of a message of many MiB.
      if (isFirst && form.json && (piece[0] ?? 0) > MOST_FLAGS) throw noEnvelope();
      isFirst = false;
      for (let at = 0, end = 0; at < piece.length; at = end) {
        end = envelopeEnd(piece, at);
        if (end > piece.length) break;
        if (isCompressed(piece, at)) continue;
        if (!this.#exceeds(form, piece.subarray(at + HEADER_BYTES, end))) continue;
        if (at > 0) yield piece.subarray(0, at);
        throw tooManyValues(this.#mostValues);
      }
      yield piece;
    }
  }

  /** A body that is one message. */
  async *#single(pieces: AsyncIterable<Uint8Array>, form: Form): AsyncGenerator<Uint8Array> {
    const read: Uint8Array[] = [];
    let bytes = 0;
    for await (const piece of pieces) {
      bytes += piece.length;
      if (bytes <= LIMITS.messageBytes) read.push(piece);
      yield piece;
    }
    if (bytes > this.#mostValues && bytes <= LIMITS.messageBytes) this.#check(form, Buffer.concat(read));
  }

  #check(form: Form, message: Uint8Array): void {
    if (this.#exceeds(form, message)) throw tooManyValues(this.#mostValues);
  }

  #exceeds({ schema, json }: Form, message: Uint8Array): boolean {
    return json ? this.#values.exceededInJson(message) : this.#values.exceededIn(schema, message);
  }
}

/**
 * Connect returns errors of other types as INTERNAL without details. `explainConnectError` finds the cause of this one.
 */
async function* explainingErrors(pieces: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  try {
    yield* pieces;
  } catch (error) {
    const cause = toReadError(error);
    if (cause === undefined) throw error;
    throw caused(cause);
  }
}

// These are thrown where only Connect catches them; `explainConnectError` finds the cause.

function tooManyValues(mostValues: number): ConnectError {
  const text =
    `A message holds more than ${mostValues} values (messages, map entries and elements of lists together): ` +
    'send fewer steps, points or rows in one message.';
  return caused(new AnabranchError('MESSAGE_TOO_LARGE', text));
}

function noEnvelope(): ConnectError {
  return caused(new AnabranchError('INVALID_REQUEST', `The body of a stream begins without an envelope. ${ENVELOPE}`));
}

function caused(cause: AnabranchError): ConnectError {
  return new ConnectError(cause.message, codeOf(cause.reason, 'read'), undefined, undefined, cause);
}
