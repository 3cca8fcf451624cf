import { constants, type ServerHttp2Stream } from 'node:http2';
import type { HttpRequest, HttpResponse } from './http.ts';
import type { Intake } from './intake.ts';

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
