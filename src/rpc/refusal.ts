import type { DescMethod } from '@bufbuild/protobuf';
import { Code, type ConnectError } from '@connectrpc/connect';
import { codeToHttpStatus, errorToJson } from '@connectrpc/connect/protocol-connect';
import { setTrailerStatus } from '@connectrpc/connect/protocol-grpc';
import { AnabranchError, type Reason } from '../domain/errors.ts';
import { LIMITS } from '../domain/limits.ts';
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

export function refuseMediaType(request: HttpRequest, response: HttpResponse, method: DescMethod): void {
  const given = String(request.headers['content-type'] ?? '').slice(0, 100);
  const command = COMMANDS[`${method.parent.name}/${method.name}`] ?? 'grpcurl';
  const text =
    method.methodKind === 'unary'
      ? `The content-type is "${given}": use application/json or application/proto for ${method.name}, or application/grpc or application/grpc-web.`
      : `${method.name} streams messages, and the content-type is "${given}": use application/connect+json or application/connect+proto, ` +
        `or application/grpc or application/grpc-web. ${ENVELOPE} On the command line, ${command} does so.`;
  refuse(request, response, 415, 'INVALID_REQUEST', text);
}

/** How a message of a stream begins, in every protocol. */
export const ENVELOPE =
  'Each message begins with 5 bytes: a zero, and its length as 4 bytes, the most significant first.';

/** Commands that call a streaming RPC. */
export const COMMANDS: Readonly<Record<string, string>> = {
  'AdminService/VerifyDatabase': '`anabranch verify`',
  'AdminService/BackupDatabase': '`anabranch backup`',
  'AdminService/VacuumDatabase': '`anabranch vacuum`',
  'AdminService/ExportArchive': '`anabranch export`',
  'AdminService/ImportArchive': '`anabranch import`',
  'RetentionService/PlanRetention': '`anabranch retention plan`',
  'RetentionService/ApplyRetention': '`anabranch retention apply`',
  'RunService/ReadMetrics': '`anabranch run`',
  'ServerService/Watch': '`anabranch watch`',
  'StateService/GetStorageUsage': '`anabranch stats`',
  'TrajectoryService/ReadSteps': '`anabranch steps`',
  'TrajectoryService/ReadTrajectories': '`anabranch table`',
  'TrajectoryService/SearchSteps': '`anabranch search`',
};

/** The message of a Connect GET is in the query. Without this check, other bytes would be read as U+FFFD. */
export function refuseQuery(request: HttpRequest, response: HttpResponse): void {
  const text = 'The request cannot be read: its query must be UTF-8, percent-encoded.';
  refuse(request, response, 400, 'INVALID_REQUEST', text);
}

/**
 * The connection is one of the reserve: of its address (`isOfCrowd`), or of the port. The port closes it after this
 * response, so that a retry may find room.
 */
export function refuseForRoom(request: HttpRequest, response: HttpResponse, isOfCrowd: boolean): void {
  if (isOfCrowd) {
    const most = LIMITS.connectionsPerAddress;
    const text = `The address has ${most} connections that have not shown a valid credential, which is the limit connectionsPerAddress, and all of them have calls in progress. Retry later.`;
    refuse(request, response, 429, 'CALLER_LIMIT', text, { limit: 'connectionsPerAddress', most: `${most}` });
    return;
  }
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
  refuseWith(request, response, status, connectErrorOf(new AnabranchError(reason, message, { metadata }), 'read'));
}

/** For callers that may not call: nothing of their request was read. */
export function refuseCaller(request: HttpRequest, response: HttpResponse, error: ConnectError): void {
  if (error.code === Code.Unauthenticated) response.setHeader('www-authenticate', 'Bearer');
  refuseWith(request, response, codeToHttpStatus(error.code), error);
}

function refuseWith(request: HttpRequest, response: HttpResponse, status: number, error: ConnectError): void {
  const contentType = request.headers['content-type'] ?? '';
  if (contentType.startsWith('application/grpc')) {
    const trailers = Object.fromEntries(setTrailerStatus(new Headers(), error));
    answer(response, 200, { 'content-type': contentType, ...trailers }, '');
    return;
  }
  const body = JSON.stringify(errorToJson(error, undefined));
  answer(response, status, { 'content-type': 'application/json' }, `${body}\n`);
}
