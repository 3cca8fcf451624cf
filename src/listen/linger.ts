import { constants, type ServerHttp2Stream } from 'node:http2';
import type { HttpRequest, HttpResponse } from './http.ts';
import type { Intake } from './intake.ts';

/**
 * Drops the rest of requests that are answered before they were read to the end. The peer has `graceMs` to finish sending: closing at once could
 * cost it the answer, and bytes that nobody reads would fill the connection for its other calls.
 */
export function linger(request: HttpRequest, response: HttpResponse, intake: Intake, graceMs: number): void {
  // HTTP/2's response finishes when its stream has closed both ways, so there the stream is asked.
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

/** A stream that is only closed lives on until somebody has read what came on it, and holds its connection with it. */
export function cutStream(stream: ServerHttp2Stream, code: number): void {
  stream.close(code);
  stream.destroy();
}
