import { Code, type ConnectError } from '@connectrpc/connect';
import { codeToHttpStatus, errorToJson } from '@connectrpc/connect/protocol-connect';
import type { Admission } from './caller.ts';
import type { Gate } from './gate.ts';
import { answer, answerOf, cutCall, type HttpRequest, type HttpResponse, type Intake, onceClosed } from './http.ts';

/** Nothing of these answers runs in the origin of the server. */
export const SAFE = { 'content-security-policy': "sandbox; default-src 'none'" } as const;

/** A request of plain HTTP that only reads. */
interface Get {
  readonly request: HttpRequest;
  readonly response: HttpResponse;
  readonly intake: Intake;
}

interface Gated {
  /** The namespace that the request is about. Default: the one that its header names. */
  readonly namespace?: string;
  /** Called with the error that is about to be sent to a caller who is not admitted. */
  readonly onRefused?: (error: ConnectError) => void;
}

/** Serves a request that is not an RPC and needs the role READ, once its caller is admitted. */
export function serveGated(
  gate: Gate,
  { request, response, intake }: Get,
  serve: (admission: Admission) => void,
  { namespace, onRefused }: Gated = {},
): void {
  const call = {
    socket: () => request.socket,
    refuse: (error: ConnectError) => {
      onRefused?.(error);
      refuse(response, error);
    },
    cut: () => cutCall(request),
    onEnd: (listener: () => void) => onceClosed(answerOf(response), listener),
    intake,
  };
  gate.pass(request, 'READ', call, serve, namespace);
}

export function refuse(response: HttpResponse, error: ConnectError): void {
  if (error.code === Code.Unauthenticated) response.setHeader('www-authenticate', 'Bearer');
  const body = JSON.stringify(errorToJson(error, undefined));
  const headers = { ...SAFE, 'content-type': 'application/json', 'cache-control': 'no-store' };
  answer(response, codeToHttpStatus(error.code), headers, `${body}\n`);
}
