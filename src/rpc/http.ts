import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http';
import { constants, type Http2ServerRequest, type Http2ServerResponse, type ServerHttp2Stream } from 'node:http2';
import { isMessage, type Message } from '@bufbuild/protobuf';
import { AppendBatchRequestSchema, AppendStepsRequestSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { PackedFrame } from '../domain/step_codec/packed_step.ts';
import { PackedRequest } from '../service/trajectory/packed_request.ts';

export type HttpRequest = IncomingMessage | Http2ServerRequest;
export type HttpResponse = ServerResponse | Http2ServerResponse;
export type HttpHandler = (request: HttpRequest, response: HttpResponse, intake: Intake) => void;
/** Serves a call of plain gRPC on its stream. */
export type StreamHandler = (stream: ServerHttp2Stream, intake: Intake) => void;
/** What tells who calls (N1), with each header as it came. */
export interface CallHead {
  readonly headers: IncomingHttpHeaders;
  readonly rawHeaders: readonly string[];
}

/** Reads the messages of a request. Callers tell it what only the RPC layer knows. */
export interface Intake {
  /** The messages of a stream, in runs of whole ones. A request of Node iterates over them, too. */
  messages(): AsyncIterable<Uint8Array>;
  /** The body of a request with one message. */
  onlyMessage(): Promise<Uint8Array>;
  /** The body is one message, which is complete when the body ends. To be called before the body is read. */
  expectOne(): void;
  /** Who sends the messages, and whether they have shown a valid credential. To be called before the body is read. */
  isOf(principal: string, isKnown: boolean): void;
  waitFor(room: () => Promise<void> | undefined): void;
  /** The message that was read last has reached its handler, or cannot be decoded. Others may be decoded now. */
  handOver(): void;
}

/** The path without its query. */
export function pathOf({ url = '' }: { readonly url?: string | undefined }): string {
  const query = url.indexOf('?');
  return query === -1 ? url : url.slice(0, query);
}

/** Returns whether the query is percent-encoded UTF-8, or missing. */
export function hasReadableQuery({ url = '' }: HttpRequest): boolean {
  try {
    decodeURIComponent(url);
    return ASCII.test(url);
  } catch {
    return false;
  }
}

/** Node reads other bytes of a request's target as Latin-1. */
const ASCII = /^[!-~]*$/;

export function answer(
  response: HttpResponse,
  status: number,
  headers: Readonly<Record<string, string>>,
  body: string,
): void {
  response.statusCode = status;
  for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
  // Without a body the headers must end the stream: some gRPC clients read a status from headers only then.
  if (body === '') response.end();
  else response.end(body);
}

/** Returns false if the reader has to take bytes (event `drain`) before more are written. */
export function write(response: HttpResponse, bytes: Uint8Array): boolean {
  return 'stream' in response ? response.write(bytes) : response.write(bytes);
}

/** Returns what closes when a response ends. */
export function answerOf(response: HttpResponse): ServerHttp2Stream | ServerResponse {
  return 'stream' in response ? response.stream : response;
}

/** Calls the listener when an answer closes, or at once if it has: its caller may have left before. */
export function onceClosed(answer: ServerHttp2Stream | ServerResponse, listener: () => void): void {
  if (answer.destroyed) listener();
  else answer.once('close', listener);
}

/** Ends a call whose response is not read: gRPC calls this code RESOURCE_EXHAUSTED. */
export function cutCall(request: HttpRequest): void {
  if ('stream' in request) cutStream(request.stream);
  else request.destroy();
}

export function cutStream(stream: ServerHttp2Stream): void {
  stream.close(constants.NGHTTP2_ENHANCE_YOUR_CALM);
  stream.destroy();
}

/** A message, or what was packed of one that need not be decoded. */
export type Received = Message | PackedFrame | PackedRequest;

/** As many steps as a group commit takes. */
const MANY_STEPS = 4096;

/**
 * Whether a message takes many times its bytes until its steps are stored: 131,072 empty steps fit into 256 KiB and
 * take 50 MiB. Such a message keeps its slot in the decode queue until then, so that few of them are in memory at once.
 */
export function isLargeInMemory(message: Received): boolean {
  return stepsOf(message) > MANY_STEPS;
}

function stepsOf(message: Received): number {
  if (message instanceof PackedFrame || isMessage(message, AppendStepsRequestSchema)) return message.steps.length;
  const batch = message instanceof PackedRequest ? (message.unchecked ?? message) : message;
  if (!(batch instanceof PackedRequest || isMessage(batch, AppendBatchRequestSchema))) return 0;
  return batch.entries.reduce((count, entry) => count + (entry?.steps.length ?? 0), 0);
}
