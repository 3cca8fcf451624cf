import { once } from 'node:events';
import { Code, ConnectError } from '@connectrpc/connect';
import { invalidField } from '../domain/errors.ts';
import { parseDigest, parseUuid, shorten } from '../domain/ids.ts';
import { isLarge, type UnsentMessages } from '../listen/unsent.ts';
import type { Call } from '../service/method.ts';
import { contentBytes, type FoundContent, findContent, type StateAddress } from '../service/state/content.ts';
import { streamAnswers, type Wire } from './call.ts';
import { type CallReport, type CallReports, REQUEST_ID } from './call_report.ts';
import { type Admission, contextValues } from './caller.ts';
import type { Gate } from './gate.ts';
import { refuse, SAFE, serveGated } from './gated_request.ts';
import { answer, cutCall, type HttpRequest, type HttpResponse, type Intake, pathOf, write } from './http.ts';

/**
 * States over plain HTTP, for browsers and curl: `GET /states/DIGEST` and
 * `GET /trajectories/ID/steps/N/states/NAME`, with ETag and Range (RFC 9110).
 */

const BY_DIGEST = /^\/states\/([^/]*)$/;
const BY_STEP = /^\/trajectories\/([^/]*)\/steps\/([^/]*)\/states\/([^/]*)$/;
const STEP_NUMBER = /^\d{1,18}$/;
const BYTE_RANGE = /^bytes=(\d{0,15})-(\d{0,15})$/i;

/**
 * Media types that a browser may show. All other states are downloads: agents wrote them, and markup of theirs (SVG,
 * HTML, PDF) must not run in the origin of the server.
 */
const SHOWN: ReadonlySet<string> = new Set([
  'image/png',
  'image/jpeg',
  'image/webp',
  'image/gif',
  'image/avif',
  'video/mp4',
  'video/webm',
]);

const DOWNLOAD = { method: 'GET state', purpose: 'read' } as const;

/** What precedes the bytes of an answer. */
interface Head {
  readonly status: 200 | 206 | 304 | 416;
  readonly headers: Readonly<Record<string, string>>;
}

export interface Downloads {
  readonly wire: Wire;
  /** Shared with the RPCs of the same connections. */
  readonly unsent: UnsentMessages;
  readonly gate: Gate;
  readonly reports: CallReports;
}

/** Returns a function that serves a request whose path names a state, and returns false for other paths. */
export function stateDownloads(
  downloads: Downloads,
): (request: HttpRequest, response: HttpResponse, intake: Intake) => boolean {
  return (request, response, intake) => {
    const path = pathOf(request);
    if (!BY_DIGEST.test(path) && !BY_STEP.test(path)) return false;
    if (request.method === 'GET' || request.method === 'HEAD') {
      const report = downloads.reports.begin(request.headers);
      response.setHeader(REQUEST_ID, report.requestId);
      serveGated(
        downloads.gate,
        { request, response, intake },
        (admission) => void send(downloads, admission, report, request, response),
        { onRefused: (error) => report.end(DOWNLOAD.method, undefined, report.mark(error)) },
      );
    } else {
      const headers = { 'content-type': 'text/plain; charset=utf-8', allow: 'GET, HEAD' };
      answer(response, 405, headers, 'A state is read with GET. To store one, call PutState.\n');
    }
    return true;
  };
}

/** Sends the answer as the reader takes it. A reader that takes nothing for too long is cut off (R3). */
async function send(
  { wire, unsent }: Downloads,
  admission: Admission,
  report: CallReport,
  request: HttpRequest,
  response: HttpResponse,
): Promise<void> {
  const end = (error?: ConnectError) => report.end(DOWNLOAD.method, admission.caller, error);
  const left = new AbortController();
  response.once('close', () => left.abort());
  const values = contextValues(
    admission,
    () => cutCall(request),
    () => undefined,
  );
  const context = { signal: left.signal, values, timeoutMs: () => undefined };
  // Set when the first bytes are there: until then, an error can still be the answer.
  let head: Head | undefined;
  try {
    for await (const part of streamAnswers(wire, context, DOWNLOAD, (call) => partsOf(call, request))) {
      if (!(part instanceof Uint8Array)) {
        head = part;
        continue;
      }
      begin(response, head);
      head = undefined;
      await sendBytes(response, part, unsent, left.signal);
    }
    begin(response, head);
    response.end();
    end();
  } catch (error) {
    if (left.signal.aborted) return end(new ConnectError('The reader has left.', Code.Canceled));
    // The length was announced, so a reader notices that bytes are missing.
    if (response.headersSent || !(error instanceof ConnectError)) cutCall(request);
    else refuse(response, report.mark(error));
    end(ConnectError.from(error));
  }
}

function begin(response: HttpResponse, head: Head | undefined): void {
  if (head === undefined) return;
  response.statusCode = head.status;
  for (const [name, value] of Object.entries(head.headers)) response.setHeader(name, value);
}

/** Large pieces wait for room in their connection, as large messages of RPCs do (A8). */
async function sendBytes(
  response: HttpResponse,
  bytes: Uint8Array,
  unsent: UnsentMessages,
  signal: AbortSignal,
): Promise<void> {
  const leave = 'stream' in response && isLarge(bytes) ? await unsent.enter(response.stream, bytes.length) : undefined;
  try {
    if (!write(response, bytes)) await once(response, 'drain', { signal });
  } finally {
    leave?.();
  }
}

/** Yields the head, then the bytes that the request wants. */
async function* partsOf(call: Call, request: HttpRequest): AsyncGenerator<Head | Uint8Array, void, undefined> {
  const address = addressIn(pathOf(request));
  const found = await findContent(call, address);
  const type = shownType(request, found);
  const etag = `"${found.digest}"`;
  const common = {
    ...SAFE,
    etag,
    // The bytes of a digest never change. A step can be deleted.
    'cache-control': 'digest' in address ? 'private, max-age=31536000, immutable' : 'private, no-cache',
  };
  if (matches(request.headers['if-none-match'], etag)) {
    yield { status: 304, headers: common };
    return;
  }
  const range = rangeIn(request, etag, found.size);
  if (range === 'unsatisfiable') {
    yield { status: 416, headers: { ...common, 'content-range': `bytes */${found.size}`, 'content-length': '0' } };
    return;
  }
  const { start, end } = range ?? { start: 0, end: found.size };
  yield {
    status: range === undefined ? 200 : 206,
    headers: {
      ...common,
      'accept-ranges': 'bytes',
      'content-type': type ?? 'application/octet-stream',
      'content-length': `${end - start}`,
      ...(type === undefined ? { 'content-disposition': `attachment; filename="${found.digest}"` } : {}),
      ...(range === undefined ? {} : { 'content-range': `bytes ${start}-${end - 1}/${found.size}` }),
    },
  };
  if (request.method === 'HEAD') return;
  yield* contentBytes(call, found, start, end);
}

/** Errors: INVALID_REQUEST. */
function addressIn(path: string): StateAddress {
  const [, digest] = BY_DIGEST.exec(path) ?? [];
  if (digest !== undefined) return { digest: parseDigest(digest, 'digest') };
  const [, id = '', number = '', name = ''] = BY_STEP.exec(path) ?? [];
  if (!STEP_NUMBER.test(number))
    throw invalidField('step_number', `must be the number of a step, got "${shorten(number)}"`);
  return { trajectoryId: parseUuid(id, 'trajectory_id'), stepNumber: BigInt(number), name: decodeName(name) };
}

function decodeName(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    throw invalidField('name', `must be percent-encoded UTF-8, got "${shorten(text)}"`);
  }
}

/** Returns the media type to show the state with: the `media_type` of the query, else that of the step's reference. */
function shownType({ url = '' }: HttpRequest, { mediaType }: FoundContent): string | undefined {
  const query = new URLSearchParams(url.slice(pathLength(url)));
  const type = (query.get('media_type') ?? mediaType).toLowerCase();
  return SHOWN.has(type) ? type : undefined;
}

function pathLength(url: string): number {
  const query = url.indexOf('?');
  return query === -1 ? url.length : query;
}

/** If-None-Match: a list of tags, weak ones included, or `*`. */
function matches(header: string | undefined, etag: string): boolean {
  const tags = header?.split(',').map((tag) => tag.trim().replace(/^W\//, ''));
  return tags?.some((tag) => tag === '*' || tag === etag) ?? false;
}

/**
 * Returns the range of the request, its end exclusive. Undefined if the whole state is to be sent: without a range,
 * with several ranges, with a range that cannot be read, or if If-Range names other bytes.
 */
function rangeIn(
  request: HttpRequest,
  etag: string,
  size: number,
): { readonly start: number; readonly end: number } | 'unsatisfiable' | undefined {
  const { range, 'if-range': ifRange } = request.headers;
  if (range === undefined || (ifRange !== undefined && ifRange !== etag)) return undefined;
  const [, first = '', last = ''] = BYTE_RANGE.exec(range) ?? [];
  if (first === '' && last === '') return undefined;
  // Without a first byte, the last n bytes are meant.
  const start = first === '' ? Math.max(0, size - Number(last)) : Number(first);
  const end = first === '' || last === '' ? size : Math.min(size, Number(last) + 1);
  if (last !== '' && first !== '' && Number(last) < start) return undefined;
  return start < end ? { start, end } : 'unsatisfiable';
}
