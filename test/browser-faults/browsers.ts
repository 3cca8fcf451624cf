/** The browsers of the fault suite, driven by one library: both without a download. */
import { existsSync } from 'node:fs';
import path from 'node:path';
import process from 'node:process';
import { type Browser, launch, type Page } from 'puppeteer-core';
import { findChromium } from '../package/chromium.ts';

export type BrowserName = 'chrome' | 'firefox';
export const BROWSERS: readonly BrowserName[] = ['chrome', 'firefox'];

const FIREFOX = ['firefox-esr', 'firefox'];

/** Finds Firefox: the program that FIREFOX names, else the first one on the PATH. */
function findFirefox(): string {
  const folders = (process.env.PATH ?? '').split(path.delimiter);
  const candidates = FIREFOX.flatMap((name) => folders.map((folder) => path.join(folder, name)));
  const found = process.env.FIREFOX ?? candidates.find((program) => existsSync(program));
  if (found !== undefined) return found;
  throw new Error(
    `The fault tests of the page need Firefox: no ${FIREFOX.join(', ')} on the PATH. ` +
      'Install it (apt-get install firefox-esr), or set FIREFOX to its path.',
  );
}

/** Chromium draws by software here, and starts few processes: starting one for each window takes a fifth of a run. */
const FLAGS: Readonly<Record<BrowserName, string[]>> = {
  chrome: [
    '--no-sandbox',
    '--disable-gpu',
    '--disable-site-isolation-trials',
    '--renderer-process-limit=2',
    '--disable-extensions',
    '--disable-background-networking',
  ],
  firefox: [],
};

/**
 * Starts Chromium without its own windows, menus and services: the same engine, network and workers for a third of the
 * time. Starts the whole Chromium where this program is not installed.
 */
export function launchShell(): Promise<Browser> {
  return launch({ executablePath: findChromium(['chromium-headless-shell']), headless: true, args: FLAGS.chrome });
}

export function launchBrowser(name: BrowserName): Promise<Browser> {
  const executablePath = name === 'chrome' ? findChromium() : findFirefox();
  return launch({ browser: name, executablePath, headless: true, args: FLAGS[name] });
}

/**
 * Opens an address in a new window, which is visible whatever others do. Errors of the page are added to `faults`;
 * failed requests are none.
 */
export async function openTab(browser: Browser, url: string, faults: string[]): Promise<Page> {
  const page = await browser.newPage({ type: 'window' });
  await page.setViewport({ width: 1500, height: 900 });
  page.on('pageerror', (error) => faults.push(String(error)));
  page.on('console', (message) => {
    const isFailedRequest = /Failed to load resource|Cross-Origin Request Blocked/.test(message.text());
    if (message.type() === 'error' && !isFailedRequest) faults.push(message.text());
  });
  await page.goto(url);
  return page;
}
