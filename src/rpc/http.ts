import type { IncomingMessage, ServerResponse } from 'node:http';
import { constants, type Http2ServerRequest, type Http2ServerResponse } from 'node:http2';

export type HttpRequest = IncomingMessage | Http2ServerRequest;
export type HttpResponse = ServerResponse | Http2ServerResponse;
export type HttpHandler = (request: HttpRequest, response: HttpResponse, intake: Intake) => void;

/** Reads the messages of a request. Callers tell it what only the RPC layer knows. */
export interface Intake {
  /** The body is one message, which is complete when the body ends. To be called before the body is read. */
  expectOne(): void;
  waitFor(room: () => Promise<void> | undefined): void;
  /** The message that was read last has reached its handler, or cannot be decoded. Others may be decoded now. */
  handOver(): void;
}

/** The path without its query. */
export function pathOf(request: HttpRequest): string {
  const url = request.url ?? '';
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

/** Ends a call whose response is not read: gRPC calls this code RESOURCE_EXHAUSTED. */
export function cutCall(request: HttpRequest): void {
  if ('stream' in request) {
    request.stream.close(constants.NGHTTP2_ENHANCE_YOUR_CALM);
    request.stream.destroy();
  } else {
    request.destroy();
  }
}
