/** What all tests of the page share, started once: the built page, a server with it, and a browser for each worker. */
import { execFile } from 'node:child_process';
import { copyFile } from 'node:fs/promises';
import path from 'node:path';
import process from 'node:process';
import { promisify } from 'node:util';
import { type Browser, connect } from 'puppeteer-core';
import type { TestProject } from 'vitest/node';
import { launchShell } from '../browser-faults/browsers.ts';
import { createDatabase } from '../support/database.ts';
import { spawnServer } from '../support/spawned-server.ts';

declare module 'vitest' {
  interface ProvidedContext {
    /** Address of the server. */
    readonly address: string;
    /** WebSocket addresses of browsers: one for each worker. */
    readonly browsers: readonly string[];
  }
}

const PAGE_BUILD = path.resolve(import.meta.dirname, '../../page/build.ts');

export async function setup({ provide, config }: TestProject): Promise<() => Promise<void>> {
  const database = await createDatabase('sqlite');
  const played = process.env.PLAYED_DEMO;
  if (played !== undefined) await copyFile(played, database.url.replace('sqlite:', ''));
  // The server reads the page when somebody asks for it.
  const [server, browsers] = await Promise.all([
    spawnServer({ database: database.url }),
    Promise.all([...Array(config.maxWorkers).keys()].map(startBrowser)),
    promisify(execFile)(process.execPath, [PAGE_BUILD]),
  ]);
  provide('address', server.url);
  provide('browsers', browsers);
  return async () => {
    await Promise.all(browsers.map(stopBrowser));
    await server.kill();
    await database.drop();
  };
}

/** Starts a browser and disconnects from it: every client of a browser attaches to all of its tabs. */
async function startBrowser(): Promise<string> {
  const browser: Browser = await launchShell();
  const address = browser.wsEndpoint();
  await browser.disconnect();
  return address;
}

async function stopBrowser(browserWSEndpoint: string): Promise<void> {
  const browser = await connect({ browserWSEndpoint });
  await browser.close();
}
