import type http from 'node:http';
import http2, { constants, type ServerHttp2Stream } from 'node:http2';
import type { Readable } from 'node:stream';
import type { Intake } from './intake.ts';

/** A request of either protocol. */
export type HttpRequest = http.IncomingMessage | http2.Http2ServerRequest;
/** A response of either protocol. */
export type HttpResponse = http.ServerResponse | http2.Http2ServerResponse;

/** What comes before the body of a request. */
export interface RequestHead {
  readonly method?: string | undefined;
  readonly url?: string | undefined;
  readonly headers: http.IncomingHttpHeaders;
  readonly rawHeaders: readonly string[];
}

/**
 * Accepted authorities of a request: a name, an IPv4 address or an IPv6 address in brackets, with or without a port.
 * Other text would make `new URL()` throw in code that does not catch it.
 */
const AUTHORITY = /^(?:[A-Za-z0-9._~-]{1,255}|\[[0-9A-Fa-f:.]{2,64}\])(?::\d{1,5})?$/;

export function isAuthority(authority: string | undefined): authority is string {
  return authority !== undefined && AUTHORITY.test(authority) && URL.canParse(`http://${authority}`);
}

/** Returns the size of the headers. HTTP/2 only asks peers to respect the limit, so the size must be checked. */
export function headerBytes(rawHeaders: readonly string[]): number {
  let bytes = 0;
  for (const part of rawHeaders) bytes += part.length;
  return bytes;
}

/**
 * Drops the rest of requests that are answered before they were read to the end. The peer has `graceMs` to finish
 * sending. Closing at once could lose the answer, and unread bytes would block the other calls of the connection.
 */
export function linger(request: HttpRequest, response: HttpResponse, intake: Intake, graceMs: number): void {
  // An HTTP/2 response finishes only when its stream has closed both ways, so the stream is checked instead.
  const answer = 'stream' in response ? response.stream : response;
  answer.once('finish', () => {
    intake.close();
    if (request.complete || request.readableEnded) return;
    dropRest(request, graceMs, () => {
      if ('stream' in request) cutStream(request.stream, constants.NGHTTP2_NO_ERROR);
      else request.socket.destroy();
    });
  });
}

/** The same for a stream without a request and a response. */
export function lingerStream(stream: ServerHttp2Stream, intake: Intake, graceMs: number): void {
  stream.once('finish', () => {
    intake.close();
    if (stream.destroyed || stream.readableEnded) return;
    dropRest(stream, graceMs, () => cutStream(stream, constants.NGHTTP2_NO_ERROR));
  });
}

function dropRest(body: Readable, graceMs: number, cut: () => void): void {
  body.resume();
  const timer = setTimeout(cut, graceMs).unref();
  const done = () => clearTimeout(timer);
  body.once('end', done);
  body.once('close', done);
}

/** Destroys the stream. A stream that is only closed stays open, with its connection, until its input has been read. */
export function cutStream(stream: ServerHttp2Stream, code: number): void {
  stream.close(code);
  stream.destroy();
}
