/** The page in a browser, for tests. */
import { mkdir } from 'node:fs/promises';
import path from 'node:path';
import axe from 'axe-core';
import { type Browser, type ConsoleMessage, chromium, type Page } from 'playwright-core';
import { findChromium } from '../package/chromium.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');

/** Screenshots for people to look at. Git ignores the folder. */
const SCREENSHOTS = path.join(ROOT, '.anabranch/screenshots');

export function launch(): Promise<Browser> {
  return chromium.launch({ executablePath: findChromium(), chromiumSandbox: false });
}

export interface OpenPage {
  readonly page: Page;
  /** Errors of the page: exceptions, and what it has written to the console. */
  readonly faults: string[];
}

/** Opens a tab. Failed requests are no faults: the page shows them to people. */
export async function openPage(browser: Browser, colorScheme: 'light' | 'dark' = 'light'): Promise<OpenPage> {
  const page = await browser.newPage({ viewport: { width: 1500, height: 900 }, colorScheme });
  return { page, faults: noteFaults(page) };
}

/** Returns the errors of a page, as a list that grows. */
export function noteFaults(page: Page): string[] {
  const faults: string[] = [];
  const log = (message: ConsoleMessage) => {
    const failedRequest = message.text().startsWith('Failed to load resource');
    if (['error', 'warning'].includes(message.type()) && !failedRequest) faults.push(message.text());
  };
  page.on('console', log);
  page.on('pageerror', (error) => faults.push(error.stack ?? error.message));
  page.on('dialog', (dialog) => {
    faults.push(`a dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  return faults;
}

/** Returns what axe finds, as one line for each rule: in the whole page, or below some selectors. */
export async function accessibilityFaults(page: Page, below: readonly string[] = ['html']): Promise<string[]> {
  await page.evaluate(axe.source);
  return page.evaluate(async (include) => {
    interface Result {
      readonly violations: readonly {
        readonly id: string;
        readonly nodes: readonly { readonly html: string; readonly failureSummary: string }[];
      }[];
    }
    interface Axe {
      readonly run: (context: { readonly include: readonly string[] }) => Promise<Result>;
    }
    const { violations } = await (globalThis as unknown as { axe: Axe }).axe.run({ include });
    return violations.map(({ id, nodes }) => `${id}: ${nodes[0]?.html} ${nodes[0]?.failureSummary}`);
  }, below);
}

export async function takeScreenshot(page: Page, name: string): Promise<void> {
  await mkdir(SCREENSHOTS, { recursive: true });
  await page.screenshot({ path: path.join(SCREENSHOTS, `${name}.png`) });
}
