import { readFileSync } from 'node:fs';
import path from 'node:path';
import { type Browser, type BrowserContext, launch, type Page } from 'puppeteer-core';
import { transformWithOxc } from 'vite';
import { findChromium } from '../../test/package/chromium.ts';

const PROBE = path.join(import.meta.dirname, 'probe.ts');

/** What the page shows when it has been loaded. */
export interface Shown {
  readonly selector: string;
  /** Elements that match. Default: 1. */
  readonly count?: number;
}

/** Headless Chromium. A context shares no cache and no worker with others. */
export class BenchBrowser {
  readonly #browser: Browser;

  private constructor(browser: Browser) {
    this.#browser = browser;
  }

  static async launch(): Promise<BenchBrowser> {
    // A spare process would count as memory of the page.
    const args = ['--no-sandbox', '--disable-features=SpareRendererForSitePerProcess'];
    return new BenchBrowser(
      await launch({ executablePath: findChromium(), headless: true, args, protocolTimeout: 600_000 }),
    );
  }

  newContext(): Promise<BrowserContext> {
    return this.#browser.createBrowserContext();
  }

  close(): Promise<void> {
    return this.#browser.close();
  }

  /** Returns the memory of the processes of all windows in bytes, without what they share. NaN without /proc. */
  async pageBytes(): Promise<number> {
    const session = await this.#browser.target().createCDPSession();
    const { processInfo } = await session.send('SystemInfo.getProcessInfo');
    await session.detach();
    const pids = processInfo.filter(({ type }) => type === 'renderer').map(({ id }) => id);
    return pids.reduce((sum, pid) => sum + privateBytes(pid), 0);
  }
}

function privateBytes(pid: number): number {
  try {
    const own = readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8').matchAll(/^(?:Private_Dirty|Swap):\s+(\d+) kB$/gm);
    return [...own].reduce((sum, [, kibibytes]) => sum + Number(kibibytes) * 1024, 0);
  } catch {
    return Number.NaN;
  }
}

/** Opens a view in a new window. Returns the window, and the milliseconds from the navigation until it is shown. */
export async function openView(
  context: BrowserContext,
  address: string,
  shown: Shown,
): Promise<{ readonly page: Page; readonly ms: number }> {
  const page = await context.newPage();
  await page.setViewport({ width: 1500, height: 1200 });
  // Windows that are open at the same time are all visible.
  await page.emulateFocusedPage(true);
  const { code } = await transformWithOxc(readFileSync(PROBE, 'utf8'), PROBE);
  await page.evaluateOnNewDocument(`${code}; globalThis.shown = ${seen(shown)};`);
  await page.goto(address, { waitUntil: 'domcontentloaded' });
  return { page, ms: await evaluated<number>(page, 'shown') };
}

/** Returns an expression for `evaluated` that waits until something is shown. */
export function seen({ selector, count = 1 }: Shown): string {
  return `probe.seen(${JSON.stringify(selector)}, ${count})`;
}

/** Evaluates an expression in a page, with the functions of the probe. */
export async function evaluated<T>(page: Page, expression: string): Promise<T> {
  return (await page.evaluate(expression)) as T;
}
