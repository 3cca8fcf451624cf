import { once } from 'node:events';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect, it } from 'vitest';
import { connectClient } from '../../src/client/index.ts';

it('a peer that does not speak HTTP/2 fails the call only: closing the client causes no unhandled error', async () => {
  const peer = http.createServer((_, response) => void response.writeHead(404).end()).listen(0, '127.0.0.1');
  await once(peer, 'listening');
  for (let i = 0; i < 20; i++) {
    const client = connectClient({ address: `127.0.0.1:${(peer.address() as AddressInfo).port}` });
    await expect(client.trajectories.listTrajectories({})).rejects.toThrow(/protocol error/i);
    client.close();
  }
  peer.closeAllConnections();
  peer.close();
  await once(peer, 'close'); // all errors of the session have been emitted: vitest fails on unhandled ones
});
