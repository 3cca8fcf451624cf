import { constants, type IncomingHttpHeaders, type IncomingHttpStatusHeader } from 'node:http2';
import { Code, ConnectError } from '@connectrpc/connect';
import { validateResponseWithCompression, validateTrailer } from '@connectrpc/connect/protocol-grpc';

const PLAIN_TYPES = new Set(['application/grpc', 'application/grpc+proto']);

/** The head of a response. */
export type Head = IncomingHttpHeaders & IncomingHttpStatusHeader;

/** Returns why a response with this head cannot be read as one of gRPC without compression. */
export function errorOfHead(head: Head, origin: string): ConnectError | undefined {
  const { ':status': status = 0, 'content-type': type = '', 'grpc-encoding': encoding } = head;
  if (status === 200 && PLAIN_TYPES.has(type) && encoding === undefined) return undefined;
  if (status === constants.HTTP_STATUS_MISDIRECTED_REQUEST) return misdirected(new URL(origin).hostname);
  try {
    validateResponseWithCompression([], status, webHeaders(head));
    return undefined;
  } catch (error) {
    return ConnectError.from(error);
  }
}

/** Returns whether headers contain the status of a call. Those of a response with nothing else may. */
export function hasStatus(headers: IncomingHttpHeaders): boolean {
  return headers['grpc-status'] !== undefined;
}

/** Returns the error that the status of a complete response is. */
export function errorOfStatus(head: IncomingHttpHeaders, trailers: IncomingHttpHeaders): ConnectError | undefined {
  const [status, others] = hasStatus(head) ? [head, {}] : [trailers, head];
  if (status['grpc-status'] === '0' && status['grpc-status-details-bin'] === undefined) return undefined;
  try {
    validateTrailer(webHeaders(status), webHeaders(others));
    return undefined;
  } catch (error) {
    if (error instanceof ConnectError) return error;
    // A proxy sent a message without percent-encoding.
    return new ConnectError(String(status['grpc-message']), Number(status['grpc-status']), webHeaders(status));
  }
}

/** The codes that gRPC assigns to HTTP/2 codes. All others are INTERNAL. */
const RESET_CODES: ReadonlyMap<number | undefined, Code> = new Map([
  [constants.NGHTTP2_REFUSED_STREAM, Code.Unavailable],
  [constants.NGHTTP2_CANCEL, Code.Canceled],
  [constants.NGHTTP2_ENHANCE_YOUR_CALM, Code.ResourceExhausted],
  [constants.NGHTTP2_INADEQUATE_SECURITY, Code.PermissionDenied],
]);

/** Returns the error of a stream that the server has reset. */
export function errorOfReset(rstCode: number | undefined): ConnectError {
  return new ConnectError(`the server reset the stream with the HTTP/2 code ${rstCode}`, codeOfReset(rstCode));
}

/** Returns the error of a stream that failed, alone or with its connection. */
export function errorOfStream(error: Error, rstCode: number | undefined): ConnectError {
  // A stream that waits for its connection has the connection's error as its cause.
  const cause = error.cause instanceof Error ? error.cause : error;
  if (cause instanceof ConnectError) return cause;
  return new ConnectError(cause.message, codeOf(cause, rstCode), undefined, undefined, cause);
}

export function connectionLost(): ConnectError {
  return new ConnectError('the connection was lost', Code.Unavailable);
}

function codeOf(error: NodeJS.ErrnoException, rstCode: number | undefined): Code {
  if (error.code === 'ERR_HTTP2_STREAM_ERROR') return codeOfReset(rstCode);
  // The peer does not speak HTTP/2, or violates it.
  return error.code === 'ERR_HTTP2_ERROR' ? Code.Internal : Code.Unavailable;
}

function codeOfReset(rstCode: number | undefined): Code {
  return RESET_CODES.get(rstCode) ?? Code.Internal;
}

/** The server sends HTTP 421 when it does not answer to the name in the address. */
function misdirected(hostname: string): ConnectError {
  const remedy = `use the address that it listens on, or start it with --allowed-host ${hostname}`;
  const text = `The server does not answer to the name ${hostname} (HTTP 421): ${remedy}.`;
  return new ConnectError(text, Code.FailedPrecondition);
}

/** Returns headers of Node as those of the web, without the pseudo-headers of HTTP/2. */
export function webHeaders(headers: IncomingHttpHeaders): Headers {
  const fields = Object.entries(headers).flatMap(([name, value]) =>
    name.startsWith(':') ? [] : [value].flat().map((one) => [name, String(one)] as [string, string]),
  );
  return new Headers(fields);
}
