import { constants, type ServerHttp2Stream } from 'node:http2';
import type { HttpRequest, HttpResponse } from './port.ts';

/**
 * Sees to requests that are answered before they were read to the end. What still comes is taken and dropped, so that it does not fill the
 * connection for its other calls, and the peer may finish its sentence: to close at once could cost it the answer. It has `graceMs` for that.
 */
export function linger(request: HttpRequest, response: HttpResponse, graceMs: number): void {
  // HTTP/2's response finishes when its stream has closed both ways, so there the stream is asked.
  const answer = 'stream' in response ? response.stream : response;
  answer.once('finish', () => {
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
