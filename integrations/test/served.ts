import { afterAll, beforeAll } from 'vitest';
import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import type { Engine } from '../../test/support/database.ts';
import { startTestServer, type TestServer, type TestServerOptions } from '../../test/support/test-server.ts';

/** A server for the tests of a describe block, and a client of it. */
export interface Served {
  readonly url: string;
  readonly client: AnabranchClient;
  readonly server: TestServer;
}

/** Starts a server before the tests of the block, and stops it after them. */
export function serving(engine: Engine, options: TestServerOptions = {}): Served {
  let server: TestServer | undefined;
  let client: AnabranchClient | undefined;
  beforeAll(async () => {
    server = await startTestServer({ engine, ...options });
    client = connectClient({ address: server.url });
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });
  return {
    get url() {
      return server!.url;
    },
    get client() {
      return client!;
    },
    get server() {
      return server!;
    },
  };
}
