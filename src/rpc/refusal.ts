import { errorToJson } from '@connectrpc/connect/protocol-connect';
import { setTrailerStatus } from '@connectrpc/connect/protocol-grpc';
import { AnabranchError, type Reason } from '../domain/errors.ts';
import { connectErrorOf } from './errors.ts';
import { answer, type HttpRequest, type HttpResponse, pathOf } from './http.ts';

/** Rejections of requests that reach no RPC, in the error format of the caller's protocol. */

/** Names the version, because callers with stubs of another version may call RPCs that this one does not have. */
export function refusePath(request: HttpRequest, response: HttpResponse, version: string): void {
  const path = pathOf(request).slice(0, 200);
  const text = `RPC ${path} does not exist on this server of version ${version}. Server reflection lists all RPCs.`;
  refuse(request, response, 404, 'UNIMPLEMENTED', text, { rpc: path, version });
}

/**
 * HTTP/1.1 does not support both directions at once. The connection is closed, because the client may wait for
 * responses on it.
 */
export function refuseVersion(request: HttpRequest, response: HttpResponse, method: string): void {
  response.setHeader('connection', 'close');
  const text = `${method} is a bidirectional stream, which requires HTTP/2. Over HTTP/1.1, use AppendBatch or AppendStep.`;
  refuse(request, response, 505, 'UNIMPLEMENTED', text);
}

export function refuseMediaType(request: HttpRequest, response: HttpResponse): void {
  const given = String(request.headers['content-type'] ?? '').slice(0, 100);
  const text =
    `The content-type is "${given}": use application/json or application/proto for a unary call, ` +
    'application/connect+json or application/connect+proto for a stream, application/grpc or application/grpc-web for either.';
  refuse(request, response, 415, 'INVALID_REQUEST', text);
}

/** The message of a Connect GET is in the query. Without this check, other bytes would be read as U+FFFD. */
export function refuseQuery(request: HttpRequest, response: HttpResponse): void {
  const text = 'The request cannot be read: its query must be UTF-8, percent-encoded.';
  refuse(request, response, 400, 'INVALID_REQUEST', text);
}

/** The connection is one of the reserve. The port closes it after this response, so that a retry may find room. */
export function refuseForRoom(request: HttpRequest, response: HttpResponse): void {
  const text =
    'The server has reached its limit of connections, and all of them have calls in progress. Retry later, and share one connection among calls. ' +
    'The operator can raise --max-connections.';
  refuse(request, response, 503, 'TOO_MANY_CONNECTIONS', text);
}

function refuse(
  request: HttpRequest,
  response: HttpResponse,
  status: number,
  reason: Reason,
  message: string,
  metadata: Readonly<Record<string, string>> = {},
): void {
  const error = connectErrorOf(new AnabranchError(reason, message, { metadata }), 'read');
  const contentType = request.headers['content-type'] ?? '';
  if (contentType.startsWith('application/grpc')) {
    const trailers = Object.fromEntries(setTrailerStatus(new Headers(), error));
    answer(response, 200, { 'content-type': contentType, ...trailers }, '');
    return;
  }
  const body = JSON.stringify(errorToJson(error, undefined));
  answer(response, status, { 'content-type': 'application/json' }, `${body}\n`);
}
