import { once } from 'node:events';
import http from 'node:http';
import type http2 from 'node:http2';
import https from 'node:https';
import { text } from 'node:stream/consumers';
import { gzipSync } from 'node:zlib';
import type { DescMethod } from '@bufbuild/protobuf';
import { MethodOptions_IdempotencyLevel } from '@bufbuild/protobuf/wkt';
import { Code } from '@connectrpc/connect';
import { expect } from 'vitest';
import { LIMITS } from '../../src/domain/limits.ts';
import { http2Session, inEnvelope, type Outcome, RawCall, rawCall } from './raw.ts';
import { METHODS } from './rpcs/drive.ts';

/** Calls without a right to them, by every method and protocol. */

export const pathOf = ({ parent, name }: DescMethod) => `/${parent.typeName}/${name}`;

/** Bytes that no decoder accepts: a caller whose request was decoded gets another error. */
export const NO_MESSAGE = Buffer.from([0, 0, 0, 0, 2, 0xff, 0xff]);

type Headers = Readonly<Record<string, string>>;

/** Connections of one client, of both versions of HTTP. */
export class Caller {
  readonly #url: string;
  readonly #tls: https.AgentOptions;
  readonly #agent: http.Agent;
  readonly session: http2.ClientHttp2Session;

  private constructor(url: string, tls: https.AgentOptions, session: http2.ClientHttp2Session) {
    this.#url = url;
    this.#tls = tls;
    this.#agent = url.startsWith('https:')
      ? new https.Agent({ ...tls, keepAlive: true })
      : new http.Agent({ keepAlive: true });
    this.session = session;
  }

  static async connect(url: string, tls: https.AgentOptions = {}): Promise<Caller> {
    return new Caller(url, tls, await http2Session(url, tls as object));
  }

  close(): void {
    this.session.destroy();
    this.#agent.destroy();
  }

  /** Calls over plain gRPC. */
  grpc(method: DescMethod, headers: Headers): Promise<Outcome> {
    return rawCall(this.session, pathOf(method), NO_MESSAGE, headers);
  }

  /** Requests over HTTP/1.1: with a body, by POST. */
  async request(path: string, headers: Headers, body?: Uint8Array): Promise<http.IncomingMessage & { body: string }> {
    const options = { method: body === undefined ? 'GET' : 'POST', headers, agent: this.#agent };
    const url = new URL(path, this.#url);
    const request = url.protocol === 'https:' ? https.request(url, options) : http.request(url, options);
    request.end(body);
    const [response] = (await once(request, 'response')) as [http.IncomingMessage];
    return Object.assign(response, { body: await text(response) });
  }

  /** Another connection of HTTP/2: a client that resets many streams is sent away. */
  another(): Promise<http2.ClientHttp2Session> {
    return http2Session(this.#url, this.#tls as object);
  }
}

/** What refuses a call. */
export interface Refusal {
  readonly code: Code.Unauthenticated | Code.PermissionDenied;
  /** In the metadata of the error, if it is told. */
  readonly fault?: string | undefined;
}

const HTTP_STATUS = { [Code.Unauthenticated]: 401, [Code.PermissionDenied]: 403 } as const;
const CONNECT_CODE = {
  [Code.Unauthenticated]: 'unauthenticated',
  [Code.PermissionDenied]: 'permission_denied',
} as const;

/** Every method refuses the caller over every protocol, before the body is decoded. No answer has the `secret`. */
export async function expectRefusedByAll(
  caller: Caller,
  headers: Headers,
  { code, fault }: Refusal,
  secret = headers.authorization?.slice(-20) ?? 'anb_',
): Promise<void> {
  const post = (method: DescMethod, type: string) =>
    caller.request(pathOf(method), { 'content-type': type, 'connect-protocol-version': '1', ...headers }, NO_MESSAGE);
  for (const method of METHODS) {
    const { status, message, metadata } = await caller.grpc(method, headers);
    expect([method.name, status, metadata.fault], message).toEqual([method.name, code, fault ?? metadata.fault]);
    expect(message).not.toContain(secret);
    if (method.methodKind === 'bidi_streaming') continue; // not over HTTP/1.1, with any credential
    const web = await post(method, 'application/grpc-web+proto');
    expect([method.name, web.statusCode, web.headers['grpc-status']]).toEqual([method.name, 200, `${code}`]);
    if (method.methodKind !== 'unary') continue;
    const connect = await post(method, 'application/proto');
    expect([method.name, connect.statusCode]).toEqual([method.name, HTTP_STATUS[code]]);
    if (code === Code.Unauthenticated) expect(connect.headers['www-authenticate']).toBe('Bearer');
    expect(JSON.parse(connect.body)).toMatchObject({ code: CONNECT_CODE[code] });
    expect(connect.body).not.toContain(secret);
    if (method.idempotency !== MethodOptions_IdempotencyLevel.NO_SIDE_EFFECTS) continue;
    const got = await caller.request(`${pathOf(method)}?connect=v1&encoding=json&message={`, headers);
    expect([method.name, got.statusCode]).toEqual([method.name, HTTP_STATUS[code]]);
  }
}

/** The paths of plain HTTP that show data refuse the caller. */
export async function expectNoData(caller: Caller, headers: Headers, { code }: Refusal): Promise<void> {
  for (const path of [`/states/${'0'.repeat(64)}`, '/trajectories/x/steps/0/states/y', '/metrics']) {
    expect((await caller.request(path, headers)).statusCode).toBe(HTTP_STATUS[code]);
  }
}

/** Bodies that a server must not wait for, nor open. They do not end. */
export const UNFINISHED: Readonly<Record<string, { readonly bytes: Uint8Array; readonly headers: Headers }>> = {
  'half sent': { bytes: inEnvelope(Buffer.alloc(9)).subarray(0, 7), headers: {} },
  'said to have 4 GiB': { bytes: Buffer.from([0, 0xff, 0xff, 0xff, 0xff, 1, 2, 3]), headers: {} },
  'compressed 1000 : 1': {
    bytes: inEnvelope(gzipSync(Buffer.alloc(10 * LIMITS.messageBytes)), 1),
    headers: { 'grpc-encoding': 'gzip' },
  },
  'full of empty values': {
    bytes: inEnvelope(Buffer.alloc(LIMITS.messageBytes, '\x12\0')).subarray(0, 16_384),
    headers: {},
  },
  'half sent by Connect': { bytes: Buffer.alloc(9), headers: { 'content-type': 'application/proto' } },
  'compressed by Connect': {
    bytes: gzipSync(Buffer.alloc(LIMITS.messageBytes)).subarray(0, 500),
    headers: { 'content-type': 'application/proto', 'content-encoding': 'gzip' },
  },
};

/** Every method refuses the caller without waiting for the end of such a body. */
export async function expectRefusedUnfinished(
  caller: Caller,
  kind: keyof typeof UNFINISHED,
  given: Headers,
  { code }: Refusal,
): Promise<void> {
  const { bytes, headers } = UNFINISHED[kind]!;
  const outcomes: unknown[] = [];
  const session = await caller.another();
  for (const method of METHODS) {
    const { stream, outcome } = new RawCall(session, pathOf(method), { ...headers, ...given });
    stream.once('end', () => stream.close()).write(bytes);
    const { http: answered, status } = await outcome;
    outcomes.push([method.name, status ?? answered]);
  }
  session.destroy();
  const refused = headers['content-type'] === undefined ? code : HTTP_STATUS[code];
  expect(outcomes).toEqual(METHODS.map((method) => [method.name, refused]));
}
