/** A server with the page, a client of it, and a browser. */
import type { Browser } from 'playwright-core';
import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import { createDatabase } from '../support/database.ts';
import { type SpawnOptions, spawnServer } from '../support/spawned-server.ts';
import { launch } from './views.ts';

export interface PageScene {
  readonly browser: Browser;
  readonly client: AnabranchClient;
  /** Address of the server, and so of the page. */
  readonly url: string;
  close(): Promise<void>;
}

export async function openPageScene(options: Omit<SpawnOptions, 'database'> = {}): Promise<PageScene> {
  const database = await createDatabase('sqlite');
  const server = await spawnServer({ ...options, database: database.url });
  const client = connectClient({ address: server.url });
  const browser = await launch();
  const close = async () => {
    await browser.close();
    client.close();
    await server.kill();
    await database.drop();
  };
  return { browser, client, url: server.url, close };
}
