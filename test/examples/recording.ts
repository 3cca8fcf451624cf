import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import type { Engine } from '../support/database.ts';
import { startTestServer } from '../support/test-server.ts';

/** A server of its own, and a client that records the path of every RPC it calls. */
export interface Recording {
  readonly client: AnabranchClient;
  readonly url: string;
  readonly called: ReadonlySet<string>;
  stop(): Promise<void>;
}

export async function startRecording(engine: Engine): Promise<Recording> {
  const server = await startTestServer({ engine });
  const called = new Set<string>();
  const client = connectClient({
    address: server.url,
    interceptors: [
      (next) => (request) => {
        called.add(`${request.service.typeName}.${request.method.name}`);
        return next(request);
      },
    ],
  });
  const stop = async () => {
    client.close();
    await server.stop();
  };
  return { client, url: server.url, called, stop };
}
