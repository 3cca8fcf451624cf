import { execFile } from 'node:child_process';
import { mkdtempSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { createClient, type Transport } from '@connectrpc/connect';
import { createConnectTransport, createGrpcTransport } from '@connectrpc/connect-node';
import { Client, credentials } from '@grpc/grpc-js';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { ServerService } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { createAuthority, writeIssued } from '../support/certificates.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';

const authority = createAuthority();
const ca = authority.cert;
const folder = mkdtempSync(path.join(os.tmpdir(), 'anabranch-addresses-'));
const socket = path.join(folder, 'sock');
const INFO = '/anabranch.v1.ServerService/GetServerInfo';

let secure: TestServer;
let local: TestServer;
beforeAll(async () => {
  writeFileSync(path.join(folder, 'ca.crt'), ca);
  secure = await startTestServer({ flags: { ...writeIssued(authority.issue()) } });
  local = await startTestServer({ flags: { listen: `unix:${socket}` } });
});
afterAll(() => Promise.all([secure.stop(), local.stop()]));

const HTTP2 = { httpVersion: '2' } as const;
const nearby = { createConnection: () => net.connect({ path: socket }) };

it('are https://HOST:PORT and unix:PATH', () => {
  expect([secure.url, local.url]).toEqual([`https://127.0.0.1:${secure.port}`, `unix:${socket}`]);
});

it.each<readonly [string, () => Transport]>([
  ['A12: gRPC over TLS', () => createGrpcTransport({ baseUrl: secure.url, nodeOptions: { ca } })],
  ['A12: Connect over TLS', () => createConnectTransport({ ...HTTP2, baseUrl: secure.url, nodeOptions: { ca } })],
  [
    'A12: Connect over HTTP/1.1 and TLS',
    () => createConnectTransport({ httpVersion: '1.1', baseUrl: secure.url, nodeOptions: { ca } }),
  ],
  ['A13: gRPC on a socket', () => createGrpcTransport({ baseUrl: 'http://localhost', nodeOptions: nearby })],
  [
    'A13: Connect over HTTP/1.1 on a socket',
    () =>
      createConnectTransport({ httpVersion: '1.1', baseUrl: 'http://localhost', nodeOptions: { socketPath: socket } }),
  ],
])('%s, by connect-node', async (_name, transport) => {
  expect((await createClient(ServerService, transport()).getServerInfo({})).version).not.toBe('');
});

it.each<readonly [string, () => Client]>([
  ['A12: TLS', () => new Client(`localhost:${secure.port}`, credentials.createSsl(Buffer.from(ca)))],
  ['A13: a socket', () => new Client(local.url, credentials.createInsecure())],
])('%s, by @grpc/grpc-js', async (_name, connect) => {
  const same = (bytes: Buffer) => bytes;
  const client = connect();
  const answer = await new Promise<Buffer | undefined>((resolve, reject) => {
    client.makeUnaryRequest(INFO, same, same, Buffer.alloc(0), (error, bytes) =>
      error === null ? resolve(bytes) : reject(error),
    );
  });
  client.close();
  expect(answer?.length).toBeGreaterThan(0);
});

it.each<readonly [string, () => readonly string[]]>([
  ['A12: TLS and HTTP/2', () => ['--cacert', path.join(folder, 'ca.crt'), '--http2', secure.url]],
  ['A12: TLS and HTTP/1.1', () => ['--cacert', path.join(folder, 'ca.crt'), '--http1.1', secure.url]],
  ['A12: TLS without ALPN', () => ['--cacert', path.join(folder, 'ca.crt'), '--no-alpn', secure.url]],
  ['A13: a socket', () => ['--unix-socket', socket, 'http://localhost']],
])('%s, by curl', async (_name, args) => {
  const [url = '', ...options] = args().toReversed();
  const request = ['-sS', ...options.toReversed(), '-H', 'content-type: application/json', '-d', '{}', url + INFO];
  const { stdout } = await promisify(execFile)('curl', request);
  expect(JSON.parse(stdout)).toHaveProperty('version');
});
