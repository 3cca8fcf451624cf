import { create, toBinary, toJson } from '@bufbuild/protobuf';
import { anyPack } from '@bufbuild/protobuf/wkt';
import { Code, encodeBinaryHeader } from '@connectrpc/connect';
import { ErrorInfoSchema } from '../../gen/es/google/rpc/error_details_pb.js';
import { StatusSchema } from '../../gen/es/google/rpc/status_pb.js';
import type { Reason } from '../domain/errors.ts';
import { ERROR_DOMAIN } from './errors.ts';
import { answer, type HttpRequest, type HttpResponse, pathOf } from './http.ts';

/** Refusals of requests that reach no RPC, in the form that the caller's protocol has for errors. */

export function refusePath(request: HttpRequest, response: HttpResponse): void {
  const path = pathOf(request).slice(0, 200);
  refuse(
    request,
    response,
    404,
    'UNIMPLEMENTED',
    `There is no RPC ${path} here: server reflection lists those there are.`,
  );
}

/** HTTP/1.1 cannot carry both directions at once; the connection is closed, since the client may wait for answers on it. */
export function refuseVersion(request: HttpRequest, response: HttpResponse, method: string): void {
  response.setHeader('connection', 'close');
  const text = `${method} is a bidirectional stream, which needs HTTP/2; over HTTP/1.1 use AppendStep.`;
  refuse(request, response, 505, 'UNIMPLEMENTED', text);
}

export function refuseMediaType(request: HttpRequest, response: HttpResponse): void {
  const given = String(request.headers['content-type'] ?? '').slice(0, 100);
  const text =
    `The content-type is "${given}": use application/json or application/proto for a unary call, ` +
    'application/connect+json or application/connect+proto for a stream, application/grpc or application/grpc-web for either.';
  refuse(request, response, 415, 'INVALID_REQUEST', text);
}

function refuse(request: HttpRequest, response: HttpResponse, status: number, reason: Reason, message: string): void {
  const code = reason === 'UNIMPLEMENTED' ? Code.Unimplemented : Code.InvalidArgument;
  const info = create(ErrorInfoSchema, { reason, domain: ERROR_DOMAIN });
  const contentType = request.headers['content-type'] ?? '';
  if (contentType.startsWith('application/grpc')) {
    const details = encodeBinaryHeader(
      create(StatusSchema, { code, message, details: [anyPack(ErrorInfoSchema, info)] }),
      StatusSchema,
    );
    const trailers = {
      'grpc-status': String(code),
      'grpc-message': encodeURIComponent(message),
      'grpc-status-details-bin': details,
    };
    answer(response, 200, { 'content-type': contentType, ...trailers }, '');
    return;
  }
  const value = Buffer.from(toBinary(ErrorInfoSchema, info)).toString('base64').replace(/=+$/, '');
  const detail = { type: ErrorInfoSchema.typeName, value, debug: toJson(ErrorInfoSchema, info) };
  const name = code === Code.Unimplemented ? 'unimplemented' : 'invalid_argument';
  const body = JSON.stringify({ code: name, message, details: [detail] });
  answer(response, status, { 'content-type': 'application/json' }, `${body}\n`);
}
