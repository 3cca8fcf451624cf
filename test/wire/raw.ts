import { once } from 'node:events';
import http2 from 'node:http2';
import net from 'node:net';
import { setTimeout as wait } from 'node:timers/promises';
import { create, type DescMessage, fromBinary, type MessageInitShape, toBinary } from '@bufbuild/protobuf';
import { type ErrorInfo, ErrorInfoSchema } from '../../gen/es/google/rpc/error_details_pb.js';
import { StatusSchema } from '../../gen/es/google/rpc/status_pb.js';

/** Clients that follow no protocol rules: they send bytes as the test wants them. */

/** A message in its envelope. */
export function envelope<Desc extends DescMessage>(schema: Desc, message: MessageInitShape<Desc>): Buffer {
  return inEnvelope(toBinary(schema, create(schema, message)));
}

export function inEnvelope(bytes: Uint8Array, flags = 0): Buffer {
  const header = Buffer.alloc(5);
  header.writeUInt8(flags, 0);
  header.writeUInt32BE(bytes.length, 1);
  return Buffer.concat([header, bytes]);
}

/** The outcome of a raw gRPC call. */
export interface Outcome {
  /** HTTP status; 0 if the stream was reset before it arrived. */
  readonly http: number;
  /** grpc-status, from trailers or headers; undefined if there was none. */
  readonly status: number | undefined;
  readonly message: string;
  /** The reason and the metadata in its ErrorInfo. */
  readonly reason: string | undefined;
  readonly metadata: Readonly<Record<string, string>>;
  readonly body: Buffer;
  /** The code of the reset that ended the stream; 0 without a reset. */
  readonly reset: number;
}

/** One raw gRPC stream on a connection. */
export class RawCall {
  readonly stream: http2.ClientHttp2Stream;
  readonly outcome: Promise<Outcome>;
  readonly #body: Buffer[] = [];
  #wake: () => void = () => undefined;

  constructor(session: http2.ClientHttp2Session, path: string, headers: http2.OutgoingHttpHeaders = {}) {
    this.stream = session.request({
      ':method': 'POST',
      ':path': path,
      'content-type': 'application/grpc+proto',
      te: 'trailers',
      ...headers,
    });
    this.stream.on('data', (piece: Buffer) => {
      this.#body.push(piece);
      this.#wake();
    });
    this.outcome = this.#finish();
  }

  get body(): Buffer {
    return Buffer.concat(this.#body);
  }

  /** Resolves when this many messages have arrived. */
  async messages(count: number): Promise<Buffer[]> {
    for (;;) {
      const found = openEnvelopes(this.body);
      if (found.length >= count) return found;
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }

  async #finish(): Promise<Outcome> {
    let http: http2.IncomingHttpHeaders & http2.IncomingHttpStatusHeader = {};
    let trailers: http2.IncomingHttpHeaders = {};
    this.stream.on('response', (headers) => (http = headers));
    this.stream.on('trailers', (headers) => (trailers = headers));
    this.stream.on('error', () => undefined); // the reset code reports it
    await once(this.stream, 'close').catch(() => undefined);
    const told = { ...http, ...trailers } as Record<string, string | undefined>;
    const status = told['grpc-status'];
    const info = infoIn(told['grpc-status-details-bin']);
    return {
      http: Number(http[':status'] ?? 0),
      status: status === undefined ? undefined : Number(status),
      message: decodeURIComponent(told['grpc-message'] ?? ''),
      reason: info?.reason,
      metadata: info?.metadata ?? {},
      body: this.body,
      reset: this.stream.rstCode ?? 0,
    };
  }
}

export function openEnvelopes(body: Buffer): Buffer[] {
  const messages: Buffer[] = [];
  for (let at = 0; at + 5 <= body.length; ) {
    const end = at + 5 + body.readUInt32BE(at + 1);
    if (end > body.length) break;
    messages.push(body.subarray(at + 5, end));
    at = end;
  }
  return messages;
}

function infoIn(details: string | undefined): ErrorInfo | undefined {
  if (details === undefined) return undefined;
  const status = fromBinary(StatusSchema, Buffer.from(details, 'base64'));
  const info = status.details.find(({ typeUrl }) => typeUrl.endsWith('/google.rpc.ErrorInfo'));
  return info === undefined ? undefined : fromBinary(ErrorInfoSchema, info.value);
}

/** Sends these bytes in a call, half-closes, and returns the outcome. */
export async function rawCall(
  session: http2.ClientHttp2Session,
  path: string,
  body: Uint8Array,
  headers?: http2.OutgoingHttpHeaders,
): Promise<Outcome> {
  const call = new RawCall(session, path, headers);
  call.stream.end(body);
  return call.outcome;
}

export async function http2Session(
  url: string,
  options: http2.ClientSessionOptions = {},
): Promise<http2.ClientHttp2Session> {
  // Node resets streams whose answer comes while the client keeps more than 10 MB to send.
  const session = http2.connect(url, { maxSessionMemory: 1_000, ...options });
  session.on('error', () => undefined); // in some tests the server is expected to end the connection
  await once(session, 'connect');
  return session;
}

/**
 * Returns everything that a server sends on a raw connection after these bytes, until it closes the connection or is
 * silent for the given time.
 */
export async function speak(
  port: number,
  bytes: string | Uint8Array,
  silentMs = 1_000,
  firstMs = 30_000,
): Promise<string> {
  const socket = net.connect({ host: '127.0.0.1', port });
  let said = '';
  socket.on('error', () => undefined);
  const over = new Promise<void>((resolve) => {
    const enough = () => {
      socket.destroy();
      resolve();
    };
    let silence = setTimeout(enough, firstMs);
    socket.on('data', (piece: Buffer) => {
      said += piece.toString('latin1');
      clearTimeout(silence);
      silence = setTimeout(enough, silentMs);
    });
    socket.on('close', () => {
      clearTimeout(silence);
      resolve();
    });
  });
  socket.write(bytes);
  await over;
  return said;
}

/** Waits until a condition holds, checking often. */
export async function until(holds: () => boolean, what: string, withinMs = 10_000): Promise<void> {
  const deadline = performance.now() + withinMs;
  while (!holds()) {
    if (performance.now() > deadline) throw new Error(`waited ${withinMs} ms, but this did not happen: ${what}`);
    await wait(5);
  }
}
