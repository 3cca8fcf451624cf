import { randomUUID } from 'node:crypto';
import http from 'node:http';
import { brotliCompressSync, gzipSync } from 'node:zlib';
import { createClient } from '@connectrpc/connect';
import { createConnectTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { http2Session, inEnvelope, RawCall, speak } from './raw.ts';

let server: TestServer;
beforeAll(async () => {
  server = await startTestServer();
});
afterAll(() => server.stop());

const SERVICE = '/anabranch.v1.TrajectoryService';

/** Bytes that are not UTF-8, within a JSON string. */
const INVALID: readonly (readonly [string, readonly number[]])[] = [
  ['Latin-1', [0xe9]],
  ['a continuation without a beginning', [0x80]],
  ['a character that is cut off', [0xf0, 0x9f, 0x92]],
  ['an overlong slash', [0xc0, 0xaf]],
  ['an overlong U+0000', [0xc0, 0x80]],
  ['an encoded surrogate', [0xed, 0xa0, 0x80]],
  ['a character beyond Unicode', [0xf4, 0x90, 0x80, 0x80]],
  ['a byte that no character has', [0xff]],
];
const [, LATIN] = INVALID[0]!;

/** The JSON of a value, in which the text `HERE` is replaced by bytes. */
function jsonWith(value: unknown, bytes: readonly number[]): Buffer {
  const [before = '', after = ''] = JSON.stringify(value).split('HERE');
  return Buffer.concat([Buffer.from(before), Buffer.from(bytes), Buffer.from(after)]);
}

function stepOf(trajectoryId: string, text = 'HERE') {
  return { trajectoryId, step: { stepNumber: '0', observations: [{ content: { text } }] } };
}

type Sent = readonly [status: number, answer: string];

/** Sends bytes over HTTP/1.1, unlike fetch also those that are no URL. */
async function send(path: string, headers: http.OutgoingHttpHeaders, body?: Uint8Array): Promise<Sent> {
  return new Promise((resolve, reject) => {
    const request = http.request(`${server.url}${path}`, { method: body === undefined ? 'GET' : 'POST', headers });
    request.on('error', reject);
    request.on('response', (response) => {
      let answer = '';
      response.setEncoding('latin1').on('data', (piece: string) => (answer += piece));
      response.on('end', () => {
        const error = Buffer.from(String(response.headers['grpc-status-details-bin'] ?? ''), 'base64');
        resolve([response.statusCode ?? 0, answer + error.toString('latin1') + JSON.stringify(response.trailers)]);
      });
    });
    request.end(body);
  });
}

async function emptyTrajectory() {
  const trajectories = createClient(
    TrajectoryService,
    createConnectTransport({ baseUrl: server.url, httpVersion: '1.1' }),
  );
  const trajectoryId = randomUUID();
  await trajectories.createTrajectory({ trajectoryId });
  const stored = async () => (await trajectories.getTrajectory({ trajectoryId })).trajectory?.nextStepNumber;
  return { trajectoryId, stored, trajectories };
}

describe('W11: JSON that is not UTF-8 is refused, and nothing of it is stored', () => {
  it.each(INVALID)('with %s, in a unary call', async (_, bytes) => {
    const { trajectoryId, stored } = await emptyTrajectory();
    const [status, answer] = await send(
      `${SERVICE}/AppendStep`,
      { 'content-type': 'application/json' },
      jsonWith(stepOf(trajectoryId), bytes),
    );
    expect([status, JSON.parse(answer.slice(0, -2))]).toMatchObject([
      400,
      {
        code: 'invalid_argument',
        message: 'The request cannot be read: JSON must be valid UTF-8.',
        details: [{ debug: { reason: 'INVALID_REQUEST' } }, { type: 'google.rpc.RequestInfo' }],
      },
    ]);
    expect(await stored()).toBe(0n);
  });

  it.each([
    ['gzip', gzipSync],
    ['br', brotliCompressSync],
  ] as const)('if it is compressed with %s', async (encoding, compress) => {
    const { trajectoryId, stored } = await emptyTrajectory();
    const body = compress(jsonWith(stepOf(trajectoryId), LATIN));
    const headers = { 'content-type': 'application/json', 'content-encoding': encoding };
    const [status, answer] = await send(`${SERVICE}/AppendStep`, headers, body);
    expect([status, answer]).toEqual([400, expect.stringContaining('INVALID_REQUEST')]);
    expect(await stored()).toBe(0n);
  });

  it.each([
    ['application/grpc-web+json', 'AppendStep', 'none'],
    ['application/grpc-web+json', 'AppendStep', 'gzip'],
    ['application/grpc+json', 'AppendStep', 'none'],
    ['application/grpc+json', 'AppendStep', 'gzip'],
    ['application/grpc+json', 'AppendSteps', 'none'],
    ['application/grpc+json', 'AppendSteps', 'gzip'],
    ['application/connect+json', 'AppendSteps', 'none'],
    ['application/connect+json', 'AppendSteps', 'gzip'],
  ])('in an envelope of %s %s, compression %s', async (type, rpc, compression) => {
    const { trajectoryId, stored } = await emptyTrajectory();
    const [open, frame] = [{ open: { trajectoryId, writerId: 'w' } }, { steps: [stepOf(trajectoryId).step] }];
    const isStream = rpc === 'AppendSteps';
    const json = jsonWith(isStream ? frame : stepOf(trajectoryId), LATIN);
    const bad = compression === 'gzip' ? inEnvelope(gzipSync(json), 1) : inEnvelope(json);
    const body = isStream ? Buffer.concat([inEnvelope(Buffer.from(JSON.stringify(open))), bad]) : bad;
    const session = await http2Session(server.url);
    const call = new RawCall(session, `${SERVICE}/${rpc}`, {
      'content-type': type,
      ...(compression === 'gzip'
        ? { [type.includes('connect') ? 'connect-content-encoding' : 'grpc-encoding']: 'gzip' }
        : {}),
    });
    call.stream.end(body);
    const outcome = await call.outcome;
    // gRPC-Web has its trailers in the body, and so has Connect.
    const told = decodeURIComponent(`${outcome.message} ${outcome.body.toString('latin1')}`);
    expect(told).toContain('The request cannot be read: JSON must be valid UTF-8.');
    session.destroy();
    expect(await stored()).toBe(0n);
  });

  it('as gRPC refuses it', async () => {
    const { trajectoryId } = await emptyTrajectory();
    const session = await http2Session(server.url);
    const call = new RawCall(session, `${SERVICE}/GetTrajectory`);
    call.stream.end(
      inEnvelope(Buffer.concat([Buffer.of(0x0a, 1 + trajectoryId.length, 0xe9), Buffer.from(trajectoryId)])),
    );
    expect(await call.outcome).toMatchObject({ status: 3, reason: 'INVALID_REQUEST' });
    session.destroy();
  });

  it('so another byte is no duplicate of a stored step', async () => {
    const { trajectoryId, stored } = await emptyTrajectory();
    for (const byte of [0xe9, 0xe8, 0xe9]) {
      const body = jsonWith(stepOf(trajectoryId), [byte]);
      const [status] = await send(`${SERVICE}/AppendStep`, { 'content-type': 'application/json' }, body);
      expect(status).toBe(400);
    }
    expect(await stored()).toBe(0n);
  });
});

describe('W11: a GET whose message is not UTF-8 is refused', () => {
  const message = (bytes: readonly number[]) => jsonWith({ taskId: 'HERE' }, bytes);
  const percent = (bytes: Uint8Array) => [...bytes].map((byte) => `%${byte.toString(16).padStart(2, '0')}`).join('');
  const path = (query: string) => `${SERVICE}/ListTrajectories?connect=v1&encoding=json&${query}`;

  it.each<readonly [string, string]>([
    ...INVALID.map(([name, bytes]) => [`percent-encoded: ${name}`, `message=${percent(message(bytes))}`] as const),
    ['in another parameter', `x=%E9&message=${percent(message([0x61]))}`],
    ['under an encoded name', `%6dessage=${percent(message(LATIN))}`],
    ['percent-encoded badly', `message=${percent(message([0x61]))}%zz`],
    ['in base64', `base64=1&message=${message(LATIN).toString('base64url')}`],
    ['compressed', `base64=1&compression=gzip&message=${gzipSync(message(LATIN)).toString('base64url')}`],
  ])('%s', async (_, query) => {
    const [status, answer] = await send(path(query), {});
    expect([status, answer]).toEqual([400, expect.stringContaining('INVALID_REQUEST')]);
  });

  it('or is not encoded at all', async () => {
    const target = Buffer.from(path('message={"taskId":"é"}'));
    const [before, after] = ['GET ', ' HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n'];
    const said = await speak(server.port, Buffer.concat([Buffer.from(before), target, Buffer.from(after)]));
    expect(said).toMatch(/^HTTP\/1\.1 400 /);
    const session = await http2Session(server.url);
    const call = new RawCall(session, target.toString('latin1'), { ':method': 'GET', 'content-type': undefined });
    call.stream.end();
    const outcome = await call.outcome;
    expect([outcome.http, outcome.body.toString()]).toEqual([400, expect.stringContaining('INVALID_REQUEST')]);
    session.destroy();
  });

  it('and one that is, is answered in every encoding', async () => {
    const json = message([...Buffer.from('zü🌊 100%')]);
    for (const query of [
      `message=${percent(json)}`,
      `message=${encodeURIComponent(json.toString())}`,
      `base64=1&message=${json.toString('base64url')}`,
      `base64=1&compression=gzip&message=${gzipSync(json).toString('base64url')}`,
    ]) {
      expect((await send(path(query), {}))[0], query).toBe(200);
    }
  });
});

describe('W11: JSON in UTF-8', () => {
  it('may begin with a byte order mark, which is no part of it', async () => {
    const { trajectoryId, trajectories } = await emptyTrajectory();
    const body = Buffer.concat([
      Buffer.of(0xef, 0xbb, 0xbf),
      Buffer.from(JSON.stringify(stepOf(trajectoryId, '\uFEFFé'))),
    ]);
    expect((await send(`${SERVICE}/AppendStep`, { 'content-type': 'application/json' }, body))[0]).toBe(200);
    const { step } = await trajectories.getStep({ trajectoryId, stepNumber: 0n });
    expect(step?.observations[0]?.content?.text).toBe('\uFEFFé');
  });

  it.each(['utf16le', 'utf16le with a mark'])('is not UTF-16: %s is refused', async (name) => {
    const text = Buffer.from(
      `${name.endsWith('mark') ? '\uFEFF' : ''}${JSON.stringify(stepOf(randomUUID(), 'é'))}`,
      'utf16le',
    );
    expect((await send(`${SERVICE}/AppendStep`, { 'content-type': 'application/json' }, text))[0]).toBe(400);
  });

  it.each([
    ['text', (bad: string) => ({ observations: [{ content: { text: bad } }] })],
    ['JSON', (bad: string) => ({ observations: [{ content: { json: `"${bad}"` } }] })],
    ['a label', (bad: string) => ({ labels: { [bad]: '' } })],
    ['a metric', (bad: string) => ({ metrics: { [bad]: 1 } })],
    ['the name of a state', (bad: string) => ({ states: [{ name: bad, data: '' }] })],
  ])('has no escaped lone surrogates in %s', async (_, fields) => {
    const { trajectoryId, stored } = await emptyTrajectory();
    for (const bad of ['\ud800', 'a\udfff', '\ude00\ud83d']) {
      const body = JSON.stringify({ trajectoryId, step: { stepNumber: '0', ...fields(bad) } });
      expect(body).toMatch(/\\u|\\\\u/);
      const [status, answer] = await send(
        `${SERVICE}/AppendStep`,
        { 'content-type': 'application/json' },
        Buffer.from(body),
      );
      expect([status, answer]).toEqual([400, expect.stringContaining('INVALID_REQUEST')]);
    }
    expect(await stored()).toBe(0n);
  });
});
