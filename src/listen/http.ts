import type http from 'node:http';
import http2, { constants, type ServerHttp2Stream } from 'node:http2';
import type { Intake } from './intake.ts';

/** A request of either protocol. */
export type HttpRequest = http.IncomingMessage | http2.Http2ServerRequest;
/** A response of either protocol. */
export type HttpResponse = http.ServerResponse | http2.Http2ServerResponse;

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
    request.resume();
    const cut = setTimeout(() => {
      if ('stream' in request) cutStream(request.stream, constants.NGHTTP2_NO_ERROR);
      else request.socket.destroy();
    }, graceMs);
    cut.unref();
    const done = () => clearTimeout(cut);
    request.once('end', done);
    request.once('close', done);
  });
}

/** Destroys the stream. A stream that is only closed stays open, with its connection, until its input has been read. */
export function cutStream(stream: ServerHttp2Stream, code: number): void {
  stream.close(code);
  stream.destroy();
}
