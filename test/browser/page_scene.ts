/** A server with the page, a client of it, and a browser. */
import process from 'node:process';
import { type BrowserContext, connect } from 'puppeteer-core';
import { inject } from 'vitest';
import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import type { Target } from '../support/tcp-proxy.ts';

export interface PageScene {
  /** A part of the browser without the cookies, caches and shared workers of other files. */
  readonly context: BrowserContext;
  readonly client: AnabranchClient;
  /** Address of the server, and so of the page. */
  readonly url: string;
  /** The same, for a proxy. */
  readonly target: Target;
  /** Closes the windows and the client. */
  close(): Promise<void>;
}

/**
 * Opens the browser of this worker on a server. The default is the server that all files share: what a test reads there
 * must not depend on what other files have written.
 */
export async function openPageScene(url: string = inject('address')): Promise<PageScene> {
  const browsers = inject('browsers');
  const browserWSEndpoint = browsers[Number(process.env.VITEST_POOL_ID) % browsers.length] ?? '';
  const browser = await connect({ browserWSEndpoint, defaultViewport: { width: 1500, height: 900 } });
  const context = await browser.createBrowserContext();
  // Keeps the process that draws: without a window, Chromium ends it and starts another one for the next test.
  await context.newPage();
  const client = connectClient({ address: url });
  const { hostname, port } = new URL(url);
  const target = { host: hostname, port: Number(port) };
  const close = async () => {
    await context.close();
    await browser.disconnect();
    client.close();
  };
  return { context, client, url, target, close };
}
