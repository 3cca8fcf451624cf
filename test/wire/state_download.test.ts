import { createHash, randomBytes } from 'node:crypto';
import { create } from '@bufbuild/protobuf';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { StepStateSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { type AnabranchClient, connectClient, uploadState } from '../../src/client/index.ts';
import { outsideSql } from '../store/sql.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { http2Session, RawCall } from './raw.ts';

const PNG = Buffer.from('89504e470d0a1a0a0000000d49484452', 'hex');
const HTML = Buffer.from('<script>alert(1)</script>');
const LARGE = Buffer.alloc(3 * 1024 * 1024, 'anabranch ');
const ABSENT = '0'.repeat(64);

describe.each(ENGINES)('states over plain HTTP, on %s', (engine) => {
  let server: TestServer;
  let client: AnabranchClient;
  let owner: string;
  let branch: string;

  beforeAll(async () => {
    server = await startTestServer({ engine });
    client = connectClient({ address: server.url });
    owner = (await client.trajectories.createTrajectory({ root: {} })).trajectory!.id;
    const states = [
      create(StepStateSchema, { name: 'screen', mediaType: 'image/png', data: PNG }),
      create(StepStateSchema, { name: 'page', mediaType: 'text/html', data: HTML }),
      create(StepStateSchema, { name: 'a/b ü', data: Buffer.alloc(0) }),
    ];
    await client.trajectories.appendStep({ trajectoryId: owner, step: { stepNumber: 1n, states } });
    const made = await client.trajectories.branchTrajectory({ trajectoryId: owner, stepNumber: 1n });
    branch = made.trajectory!.id;
    for (const put of [LARGE, PNG]) await uploadState(client, put);
  });
  afterAll(async () => {
    client.close();
    await server.stop();
  });

  const get = (path: string, headers: Record<string, string> = {}, method = 'GET') =>
    fetch(`${server.url}${path}`, { headers, method });
  const large = `/states/${sha256(LARGE)}`;
  const stateOf = (trajectory: string, name: string, step = '1') =>
    `/trajectories/${trajectory}/steps/${step}/states/${encodeURIComponent(name)}`;

  it('a digest returns the bytes as a download, which caches may keep', async () => {
    const response = await get(large);
    expect(response.status).toBe(200);
    expect(Object.fromEntries(response.headers)).toMatchObject({
      'content-type': 'application/octet-stream',
      'content-disposition': `attachment; filename="${sha256(LARGE)}"`,
      'content-length': `${LARGE.length}`,
      'accept-ranges': 'bytes',
      'cache-control': 'private, max-age=31536000, immutable',
      'x-content-type-options': 'nosniff',
      'content-security-policy': "sandbox; default-src 'none'",
      'cross-origin-resource-policy': 'same-origin',
      etag: `"${sha256(LARGE)}"`,
    });
    expect(sha256(await bytesOf(response))).toBe(sha256(LARGE));
  });

  it('a reference returns the state of an own step and of an inherited one, which caches must check again', async () => {
    for (const trajectory of [owner, branch]) {
      const response = await get(stateOf(trajectory, 'screen'));
      expect([response.status, response.headers.get('cache-control')]).toEqual([200, 'private, no-cache']);
      expect(await bytesOf(response)).toEqual(PNG);
    }
    const empty = await get(stateOf(owner, 'a/b ü'));
    expect([empty.status, await bytesOf(empty)]).toEqual([200, Buffer.alloc(0)]);
  });

  it('images and videos are shown under their media type, and everything else is a download', async () => {
    const shownAs = async (path: string) => {
      const { headers } = await get(path);
      return [headers.get('content-type'), headers.has('content-disposition') ? 'download' : 'shown'];
    };
    const image = `/states/${sha256(PNG)}`;
    expect(await shownAs(stateOf(owner, 'screen'))).toEqual(['image/png', 'shown']);
    expect(await shownAs(`${image}?media_type=image/png`)).toEqual(['image/png', 'shown']);
    expect(await shownAs(`${image}?media_type=VIDEO/MP4`)).toEqual(['video/mp4', 'shown']);
    const download = ['application/octet-stream', 'download'];
    expect(await shownAs(image)).toEqual(download);
    expect(await shownAs(stateOf(owner, 'page'))).toEqual(download);
    for (const type of ['text/html', 'image/svg+xml', 'application/pdf', 'image/png;charset=utf-8', ''])
      expect(await shownAs(`${stateOf(owner, 'screen')}?media_type=${encodeURIComponent(type)}`)).toEqual(download);
  });

  it.each([
    ['bytes=0-0', 0, 1],
    ['bytes=262143-262144', 262_143, 262_145],
    ['bytes=3000000-', 3_000_000, LARGE.length],
    ['bytes=-5', LARGE.length - 5, LARGE.length],
    ['bytes=3145000-99999999', 3_145_000, LARGE.length],
    ['bytes=-99999999', 0, LARGE.length],
  ])('Range: %s returns these bytes with 206', async (range, start, end) => {
    const response = await get(large, { range });
    expect(response.status).toBe(206);
    expect(response.headers.get('content-range')).toBe(`bytes ${start}-${end - 1}/${LARGE.length}`);
    expect(response.headers.get('content-length')).toBe(`${end - start}`);
    expect((await bytesOf(response)).equals(LARGE.subarray(start, end))).toBe(true);
  });

  it.each([`bytes=${LARGE.length}-`, 'bytes=-0'])('%s is beyond the end: 416 and the size', async (range) => {
    const response = await get(large, { range });
    expect([response.status, response.headers.get('content-range')]).toEqual([416, `bytes */${LARGE.length}`]);
    expect(await bytesOf(response)).toHaveLength(0);
  });

  it.each([
    { range: 'bytes=0-1,5-6' },
    { range: 'bytes=x' },
    { range: 'bytes=-' },
    { range: 'bytes=5-2' },
    { range: 'steps=9000000-9000001' },
    { range: 'bytes=0-1', 'if-range': `"${ABSENT}"` },
  ])('several ranges, malformed ones and those of other bytes are ignored: %j', async (headers) => {
    const response = await get(large, headers);
    expect([response.status, response.headers.get('content-length')]).toEqual([200, `${LARGE.length}`]);
    await response.body?.cancel();
  });

  it('If-Range with the ETag of the state keeps the range', async () => {
    const response = await get(large, { range: 'bytes=0-1', 'if-range': `"${sha256(LARGE)}"` });
    expect([response.status, await bytesOf(response)]).toEqual([206, LARGE.subarray(0, 2)]);
  });

  it.each([`"${sha256(LARGE)}"`, `"x", W/"${sha256(LARGE)}"`, '*'])(
    'If-None-Match: %s is answered with 304 and no bytes',
    async (tags) => {
      const response = await get(large, { 'if-none-match': tags, range: 'bytes=0-1' });
      expect([response.status, response.headers.get('etag')]).toEqual([304, `"${sha256(LARGE)}"`]);
      expect(await bytesOf(response)).toHaveLength(0);
    },
  );

  it('HEAD returns the same headers without bytes', async () => {
    const response = await get(large, {}, 'HEAD');
    expect([response.status, response.headers.get('content-length')]).toEqual([200, `${LARGE.length}`]);
    expect(await bytesOf(response)).toHaveLength(0);
  });

  it('other methods are answered with 405', async () => {
    const response = await get(large, {}, 'DELETE');
    expect([response.status, response.headers.get('allow')]).toEqual([405, 'GET, HEAD']);
  });

  it('HTTP/2 returns the same', async () => {
    const session = await http2Session(server.url);
    const call = new RawCall(session, stateOf(owner, 'screen'), { ':method': 'GET' });
    call.stream.end();
    const { http, body } = await call.outcome;
    expect([http, body]).toEqual([200, PNG]);
    session.destroy();
  });

  it.each([
    ['a digest in capitals', 400, () => `/states/${'A'.repeat(64)}`, 'digest'],
    ['no digest', 400, () => '/states/', 'digest'],
    ['a digest that is not stored', 404, () => `/states/${ABSENT}`, ABSENT],
    ['an id that is no UUID', 400, () => stateOf('x', 'screen'), 'trajectory_id'],
    ['a trajectory that does not exist', 404, () => stateOf('0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c5b6a', 'a'), '0192c7a4'],
    ['a negative step number', 400, () => stateOf(owner, 'screen', '-1'), 'step_number'],
    ['a step number that fits no integer', 400, () => stateOf(owner, 'screen', '9'.repeat(19)), 'step_number'],
    ['a step that does not exist', 404, () => stateOf(owner, 'screen', '2'), 'step'],
    ['a step without that state', 404, () => stateOf(owner, 'screem'), '"a/b ü", "page", "screen"'],
    ['a name that is not UTF-8', 400, () => `/trajectories/${owner}/steps/1/states/%ff`, 'name'],
  ])('%s is refused with %d, as JSON with the reason', async (_, status, path, words) => {
    const response = await get(path());
    expect([response.status, response.headers.get('content-type')]).toEqual([status, 'application/json']);
    const answer = (await response.json()) as { message: string; details: { debug: { reason: string } }[] };
    expect(answer.message).toContain(words);
    expect(answer.details[0]?.debug.reason).toMatch(status === 400 ? 'INVALID_REQUEST' : /_NOT_FOUND$/);
  });

  it('S3: a damaged state ends the connection before the announced length', async () => {
    const bytes = randomBytes(600_000);
    const digest = await uploadState(client, bytes);
    const sql = await outsideSql(server.database);
    const upload = 'select upload from state_chunks group by upload having sum(size) = 600000';
    const chunks = `from state_chunks where upload = (${upload})`;
    const deleted = await sql.rows(`delete ${chunks} and ordinal = (select max(ordinal) ${chunks}) returning ordinal`);
    expect(deleted).toHaveLength(1);
    await sql.close();
    const response = await get(`/states/${digest}`);
    expect(response.status).toBe(200);
    await expect(response.arrayBuffer()).rejects.toThrow();
  });

  it('S3: a small damaged state is answered with an error, without the headers of the state', async () => {
    const bytes = randomBytes(3_000);
    const digest = await uploadState(client, bytes);
    const sql = await outsideSql(server.database);
    const blob = (hex: string) => (engine === 'sqlite' ? `x'${hex}'` : `'\\x${hex}'::bytea`);
    const damaged = `${Buffer.from(bytes).toString('hex').slice(0, -2)}${bytes.at(-1) === 0 ? '01' : '00'}`;
    const rows = await sql.rows(
      `update states set data = ${blob(damaged)} where digest = ${blob(digest)} returning 1 as n`,
    );
    await sql.close();
    expect(rows).toHaveLength(1);
    const response = await get(`/states/${digest}`);
    const headers = Object.fromEntries(response.headers);
    const { details } = (await response.json()) as { details: { debug: { reason: string } }[] };
    expect([response.status, details[0]?.debug.reason]).toEqual([500, 'STATE_CORRUPT']);
    expect(headers).toMatchObject({ 'content-type': 'application/json', 'cache-control': 'no-store' });
    for (const name of ['etag', 'accept-ranges', 'content-disposition', 'content-range'])
      expect(headers).not.toHaveProperty(name);
  });
});

function sha256(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}

async function bytesOf(response: Response): Promise<Buffer> {
  return Buffer.from(await response.arrayBuffer());
}
