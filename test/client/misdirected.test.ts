import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type Http2Server } from 'node:http2';
import type { AddressInfo } from 'node:net';
import { Code, ConnectError } from '@connectrpc/connect';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type AnabranchClient, connectClient, openWriter, readSteps } from '../../src/client/index.ts';
import { isTransient } from '../../src/client/retry.ts';

describe('a client that calls a server by a name that the server does not answer to (HTTP 421)', () => {
  let server: Http2Server;
  let client: AnabranchClient;
  let calls = 0;
  beforeAll(async () => {
    // Answers like the port does for a foreign Host. A real name that resolves to loopback does not exist on every
    // machine.
    server = createServer((_request, response) => {
      calls += 1;
      response.writeHead(421, { 'content-type': 'text/plain; charset=utf-8' });
      response.end('The Host of the request is ...\n');
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    client = connectClient({ address: `localhost:${(server.address() as AddressInfo).port}` });
  });
  afterAll(async () => {
    client.close();
    server.close();
    await once(server, 'close');
  });

  it.each<[string, () => Promise<unknown>]>([
    ['a call', () => client.trajectories.listTrajectories({})],
    ['a writer', () => openWriter(client, { trajectoryId: randomUUID() })],
    ['a reader', async () => readSteps(client, { trajectoryId: randomUUID() })[Symbol.asyncIterator]().next()],
  ])('gets an error that says what to do, and does not retry: %s', async (_what, call) => {
    calls = 0;
    const error = await call().then(
      () => expect.fail('the call succeeded'),
      (thrown: unknown) => thrown,
    );
    expect(error).toBeInstanceOf(ConnectError);
    expect((error as ConnectError).code).toBe(Code.FailedPrecondition);
    expect((error as ConnectError).rawMessage).toBe(
      'The server does not answer to the name localhost (HTTP 421): use the address that it listens on, or start it with --allowed-host localhost.',
    );
    expect(isTransient(error)).toBe(false);
    expect(calls).toBe(1);
  });
});
