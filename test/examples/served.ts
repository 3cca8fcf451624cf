import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import type { Engine } from '../support/database.ts';
import { startTestServer } from '../support/test-server.ts';

/** A server for one story, and its client. */
export interface Served {
  readonly client: AnabranchClient;
  readonly url: string;
  stop(): Promise<void>;
}

export async function startServed(engine: Engine): Promise<Served> {
  const server = await startTestServer({ engine });
  const client = connectClient({ address: server.url });
  const stop = async () => {
    client.close();
    await server.stop();
  };
  return { client, url: server.url, stop };
}
