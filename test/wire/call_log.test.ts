import { randomUUID } from 'node:crypto';
import { Code, ConnectError, createClient, type Interceptor, type Transport } from '@connectrpc/connect';
import { createConnectTransport, createGrpcTransport, createGrpcWebTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { RequestInfoSchema } from '../../gen/es/google/rpc/error_details_pb.js';
import { connectClient, uploadState } from '../../src/client/index.ts';
import { AnabranchError } from '../../src/domain/errors.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { wrappedStore } from '../support/wrapped_store.ts';
import { withHeaders } from './headers.ts';
import { NOBODY } from './rpcs/scene.ts';

interface Line {
  readonly level: number;
  readonly msg: string;
  readonly [field: string]: unknown;
}

const TRACE = '0af7651916cd43dd8448eb211c80319c';
/** The closed set, with what the log itself adds. */
const FIELDS = ['requestId', 'method', 'code', 'durationMs', 'principal', 'namespace', 'traceId'];
const OF_LOG = ['level', 'time', 'pid', 'hostname', 'msg'];
const WARN = 40;
/** Calls may be slow beside other tests. */
const NO_FAULT = expect.stringMatching(/^a call (ended|was slow)$/);

describe.each<[string, (options: { baseUrl: string; interceptors: Interceptor[] }) => Transport]>([
  ['gRPC', createGrpcTransport],
  ['gRPC-Web', (options) => createGrpcWebTransport({ ...options, httpVersion: '1.1' })],
  ['Connect', (options) => createConnectTransport({ ...options, httpVersion: '1.1' })],
])('N4: what is told about calls, by %s', (_name, transportOf) => {
  let server: TestServer;
  const lines: Line[] = [];
  beforeAll(async () => {
    server = await startTestServer({
      onLog: (line) => lines.push(JSON.parse(line) as Line),
      wrap: (store) =>
        wrappedStore(store, {
          listTags: () => Promise.reject(new AnabranchError('DATABASE_UNAVAILABLE', 'down')),
          deleteTag: () => Promise.reject(new Error('a defect')),
          setTag: async () => {
            await new Promise((resolve) => setTimeout(resolve, 1100));
            throw new AnabranchError('TAG_NOT_FOUND', 'none');
          },
        }),
    });
  });
  afterAll(() => server?.stop());

  /** Makes a call. Returns the id of its response, and its error. */
  async function call(
    make: (client: ReturnType<typeof createClient<typeof TrajectoryService>>) => Promise<unknown>,
    headers: Readonly<Record<string, string>> = {},
  ) {
    let id: string | null = null;
    const noteId: Interceptor = (next) => async (request) => {
      const response = await next(request);
      id = response.header.get('x-request-id');
      return response;
    };
    const interceptors = [noteId, withHeaders(headers)];
    const client = createClient(TrajectoryService, transportOf({ baseUrl: server.url, interceptors }));
    const error = await make(client).then(
      () => undefined,
      (thrown: unknown) => ConnectError.from(thrown),
    );
    return { id: id ?? error?.metadata.get('x-request-id'), error };
  }
  const lineOf = async (requestId: string | null | undefined): Promise<Line> => {
    await expect.poll(() => lines.some((line) => line.requestId === requestId)).toBe(true);
    return lines.find((line) => line.requestId === requestId)!;
  };

  it('an id comes from the caller, is in the response, and in the line of the log', async () => {
    const requestId = `${randomUUID()}/a=b@c.d:1+2_3`;
    const traceparent = `00-${TRACE}-b7ad6b7169203331-01`;
    const { id } = await call((client) => client.createTrajectory({ name: 'canary' }), {
      'x-request-id': requestId,
      traceparent,
      'anabranch-namespace': 'team-a',
    });
    expect(id).toBe(requestId);
    const line = await lineOf(id);
    expect(line).toMatchObject({
      method: 'TrajectoryService/CreateTrajectory',
      code: 'OK',
      principal: 'anonymous',
      namespace: 'team-a',
      traceId: TRACE,
      durationMs: expect.any(Number),
    });
    expect(
      Object.keys(line)
        .filter((key) => !OF_LOG.includes(key))
        .sort(),
    ).toEqual([...FIELDS].sort());
    expect(JSON.stringify(lines)).not.toContain('canary');
  });

  it('an id is made for callers that send none, or one that is too long or has other characters', async () => {
    const made = new Set<unknown>();
    for (const wrong of [undefined, 'x'.repeat(129), 'a b', '{"a":1}', 'ä']) {
      const headers = wrong === undefined ? {} : { 'x-request-id': wrong };
      const { id } = await call((client) => client.createTrajectory({}), headers);
      expect(id).toMatch(/^[\w-]{8}-[a-z\d]+$/);
      made.add(id);
    }
    expect(made.size).toBe(5);
  });

  it('an error has the id as RequestInfo, and an error of the caller is not a warning', async () => {
    const { id, error } = await call((client) => client.getTrajectory({ trajectoryId: NOBODY }));
    expect(error?.findDetails(RequestInfoSchema)).toMatchObject([{ requestId: id }]);
    expect(await lineOf(id)).toMatchObject({ msg: NO_FAULT, code: 'NOT_FOUND' });
    const invalid = await call((client) => client.getTrajectory({ trajectoryId: 'canary' }));
    expect(invalid.error?.findDetails(RequestInfoSchema)).toMatchObject([{ requestId: invalid.id }]);
    expect(await lineOf(invalid.id)).toMatchObject({ msg: NO_FAULT, code: 'INVALID_ARGUMENT' });
    expect(JSON.stringify(lines)).not.toContain('canary');
  });

  it('faults of the server and slow calls are warnings', async () => {
    const trajectoryId = randomUUID();
    const down = await call((client) => client.listTags({ trajectoryId }));
    expect(down.error?.code).toBe(Code.Unavailable);
    expect(await lineOf(down.id)).toMatchObject({ level: WARN, msg: 'a call failed', code: 'UNAVAILABLE' });
    const defect = await call((client) => client.deleteTag({ trajectoryId, name: 'x' }));
    expect(await lineOf(defect.id)).toMatchObject({ level: WARN, msg: 'a call failed', code: 'INTERNAL' });
    const slow = await call((client) => client.setTag({ trajectoryId, name: 'x', stepNumber: 0n }));
    const line = await lineOf(slow.id);
    expect(line).toMatchObject({ level: WARN, msg: 'a call was slow', code: 'NOT_FOUND' });
    expect(line.durationMs).toBeGreaterThan(1000);
  });
});

it('N4: a call that the gate refuses has an id, and a line without a principal', async () => {
  const lines: Line[] = [];
  await using server = await startTestServer({
    settings: { authenticated: true },
    onLog: (line) => lines.push(JSON.parse(line) as Line),
  });
  const interceptors = [withHeaders({ authorization: 'Bearer canary', 'x-request-id': 'mine' })];
  for (const transport of [createGrpcTransport, createConnectTransport]) {
    const client = createClient(TrajectoryService, transport({ baseUrl: server.url, interceptors, httpVersion: '2' }));
    const error = ConnectError.from(await client.createTrajectory({}).catch((thrown: unknown) => thrown));
    expect(error.code).toBe(Code.Unauthenticated);
    expect(error.findDetails(RequestInfoSchema)).toMatchObject([{ requestId: 'mine' }]);
    expect(error.metadata.get('x-request-id')).toBe('mine');
  }
  const own = lines.filter(({ requestId }) => requestId === 'mine');
  expect(own).toMatchObject([{ code: 'UNAUTHENTICATED' }, { code: 'UNAUTHENTICATED' }]);
  for (const line of own) expect(line).not.toHaveProperty('principal');
  expect(JSON.stringify(lines)).not.toContain('canary');
});

it('N4: a download of a state has an id and a line, as a call has, whether it is admitted or not', async () => {
  const lines: Line[] = [];
  await using server = await startTestServer({ onLog: (line) => lines.push(JSON.parse(line) as Line) });
  const client = connectClient({ address: server.url });
  const digest = await uploadState(client, Buffer.from('canary'));
  client.close();
  const download = async (path: string, requestId: string, headers: Readonly<Record<string, string>> = {}) => {
    const response = await fetch(server.url + path, { headers: { 'x-request-id': requestId, ...headers } });
    expect(response.headers.get('x-request-id')).toBe(requestId);
    const body = await response.text();
    await expect.poll(() => lines.some((line) => line.requestId === requestId)).toBe(true);
    return { body, line: lines.find((line) => line.requestId === requestId) };
  };
  const read = await download(`/states/${digest}`, 'read');
  expect(read.body).toBe('canary');
  expect(read.line).toMatchObject({ method: 'GET state', code: 'OK', principal: 'anonymous', namespace: 'default' });
  const absent = await download(`/states/${'0'.repeat(64)}`, 'absent');
  expect(absent.line).toMatchObject({ method: 'GET state', code: 'NOT_FOUND', principal: 'anonymous' });
  expect(absent.body).toContain('google.rpc.RequestInfo');
  const refused = await download(`/states/${digest}`, 'refused', { 'anabranch-namespace': 'not a name!' });
  expect(refused.line).toMatchObject({ method: 'GET state', code: 'INVALID_ARGUMENT' });
  expect(refused.line).not.toHaveProperty('principal');
  expect(refused.body).toContain('google.rpc.RequestInfo');
  expect(JSON.stringify(lines)).not.toContain('canary');
});
