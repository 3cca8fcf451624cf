import { randomUUID } from 'node:crypto';
import { Code, ConnectError, type Interceptor } from '@connectrpc/connect';
import { expect, it } from 'vitest';
import { VERSION } from '../../gen/es/anabranch/v1/limits.js';
import {
  type AnabranchClient,
  connectClient,
  openMetricLogger,
  openWriter,
  readSteps,
  uploadState,
  watchRun,
} from '../../src/client/index.ts';
import { areCompatible } from '../../src/client/limits.ts';
import { connectClient as connectWebClient } from '../../src/client/web/index.ts';
import { startTestServer } from '../support/test-server.ts';
import { connected } from './connected.ts';

const TEXT = `client version ${VERSION} cannot use server version 9.2.0: install the same major version of both (below 1.0, the same minor version)`;

it.each([
  ['0.1.0', '0.1.7', true],
  ['0.1.0', '0.2.0', false],
  ['0.1.0', '0.10.0', false],
  ['0.1.0', '1.1.0', false],
  ['1.4.0', '1.0.0-rc.1', true],
  ['1.4.0', '10.4.0', false],
  ['0.1.0', '', false],
  ['next', 'next', false],
])('a client of version %s can use a server of version %s: %s', (client, server, expected) => {
  expect(areCompatible(client, server)).toBe(expected);
});

const USES: readonly [string, (client: AnabranchClient) => Promise<unknown>][] = [
  ['a call', (client) => client.runs.listRuns({})],
  ['a writer', (client) => openWriter(client, { trajectoryId: randomUUID() })],
  ['a reader', (client) => readSteps(client, { trajectoryId: randomUUID() })[Symbol.asyncIterator]().next()],
  ['a watch', (client) => watchRun(client, { runId: randomUUID() })[Symbol.asyncIterator]().next()],
  ['an upload', (client) => uploadState(client, new Uint8Array(9))],
  [
    'a metric logger',
    async (client) => {
      const logger = openMetricLogger(client, { runId: randomUUID() });
      logger.log('loss', 1, 1);
      await logger.flush();
    },
  ],
];

it.each(USES)(
  '%s fails with both versions on a server of another major version, which gets no call',
  async (_, use) => {
    let called = 0;
    const runs = {
      listRuns: () => {
        called += 1;
        return {};
      },
    };
    const { client, peer } = await connected({ runs, server: { getServerInfo: () => ({ version: '9.2.0' }) } });
    for (let time = 0; time < 2; time += 1) {
      const error = await use(client).catch((thrown: unknown) => thrown);
      expect(error).toBeInstanceOf(ConnectError);
      expect(error).toMatchObject({ code: Code.FailedPrecondition, rawMessage: TEXT });
    }
    expect([called, peer.opens, peer.reads, peer.watches]).toEqual([0, [], [], []]);
    expect(await client.server.getServerInfo({})).toMatchObject({ version: '9.2.0' });
  },
);

it('a client asks once, and again after the server was upgraded', async () => {
  let [version, asked] = ['9.2.0', 0];
  const getServerInfo = () => {
    asked += 1;
    return { version };
  };
  const { client } = await connected({ runs: { listRuns: () => ({}) }, server: { getServerInfo } });
  await expect(client.runs.listRuns({})).rejects.toThrow(TEXT);
  version = VERSION;
  await client.runs.listRuns({});
  await client.runs.listRuns({});
  expect(asked).toBe(2);
});

it('a client for browsers asks first too, with the deadline of the call', async () => {
  await using server = await startTestServer();
  const methods: string[] = [];
  const noting: Interceptor = (next) => async (request) => {
    methods.push(`${request.method.name} ${request.header.get('connect-timeout-ms')}`);
    return await next(request);
  };
  const other: Interceptor = (next) => async (request) => {
    const response = await next(request);
    if (request.method.name === 'GetServerInfo') Object.assign(response.message, { version: '9.2.0' });
    return response;
  };
  const web = connectWebClient({ address: server.url, interceptors: [noting] });
  await web.runs.listRuns({}, { timeoutMs: 5_000 });
  await web.runs.listRuns({});
  expect(methods).toEqual(['GetServerInfo 5000', 'ListRuns 5000', 'ListRuns 60000']);
  methods.length = 0;
  const mismatched = connectWebClient({ address: server.url, interceptors: [noting, other] });
  await expect(mismatched.runs.listRuns({})).rejects.toThrow(TEXT);
  expect(methods).toEqual(['GetServerInfo 60000']);
});

it('the client for Node sees the version of a real server', async () => {
  await using server = await startTestServer();
  const client = connectClient({ address: server.url });
  expect(await client.server.getServerInfo({})).toMatchObject({ version: VERSION });
  client.close();
});
