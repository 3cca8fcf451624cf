import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Code } from '@connectrpc/connect';
import { describe, expect, it } from 'vitest';
import { connectClient, openWriter } from '../../src/client/index.ts';

describe('connectClient', () => {
  it.each([
    ['127.0.0.1:50051', 'http://127.0.0.1:50051'],
    ['localhost:50051', 'http://localhost:50051'],
    ['[::1]:50051', 'http://[::1]:50051'],
    ['http://example.org:8080', 'http://example.org:8080'],
    ['https://example.org', 'https://example.org'],
  ])('understands %s', (address, url) => {
    expect(connectClient({ address }).url).toBe(url);
  });

  it.each([
    ...['', 'http://', 'http://host/path', 'http://user@host', 'ftp://host'],
    ...['host:port', 'host:99999', 'host:0', 'host:-1', 'host:'],
    ...[' host:1', 'host:1\n', 'ho\nst:1', 'host\t:1', 'http://host:1/ '],
  ])('rejects %j at once, and the error says what is expected', (address) => {
    expect(() => connectClient({ address })).toThrow(/: expected host:port/);
  });

  it('a peer that does not speak HTTP/2 fails the call, and the process goes on', async () => {
    const server = createServer((_, response) => response.end('hello'));
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const client = connectClient({ address: `127.0.0.1:${(server.address() as AddressInfo).port}` });
    const trajectoryId = '0191c5a0-0000-7000-8000-0000000000aa';
    await expect(client.trajectories.getTrajectory({ trajectoryId })).rejects.toMatchObject({ code: Code.Internal });
    const opening = openWriter(client, { trajectoryId, giveUpAfterMs: 200 });
    await expect(opening).rejects.toThrow(/last error: .*Protocol error/);
    client.close();
    await new Promise((resolve) => server.close(resolve));
  });
});
