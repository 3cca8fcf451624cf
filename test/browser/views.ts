/** The page in a browser, for tests. */
import { mkdir, readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import path from 'node:path';
import process from 'node:process';
import { type BrowserContext, type ConsoleMessage, type Page, Puppeteer } from 'puppeteer-core';
import { expect } from 'vitest';
import { dose } from '../support/dose.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');

/** Screenshots for people to look at. Git ignores the folder. */
const SCREENSHOTS = path.join(ROOT, '.anabranch/screenshots');

/** The minified script: each window that is checked parses it. */
const AXE = createRequire(import.meta.url).resolve('axe-core/axe.min.js');

/** The themes of this run: the other one takes as long, and only colours differ. */
export const THEMES = dose<readonly Theme[]>(['light'], ['light', 'dark']);
type Theme = 'light' | 'dark';

/** Rows of the tree. */
export const ROWS = '[role=row]:not(.grid-head)';

export interface OpenPage {
  readonly page: Page;
  /** Errors of the page: exceptions, and what it has written to the console. */
  readonly faults: string[];
}

/** TEST_PAGE_SLOWDOWN=6 makes pages so many times slower, and each response late: no test may read before it waits. */
const SLOWDOWN = Number(process.env.TEST_PAGE_SLOWDOWN ?? 1);

async function slowDown(page: Page): Promise<void> {
  const session = await page.createCDPSession();
  await session.send('Emulation.setCPUThrottlingRate', { rate: SLOWDOWN });
  await session.send('Network.enable');
  const conditions = { offline: false, latency: 40 * SLOWDOWN, downloadThroughput: -1, uploadThroughput: -1 };
  await session.send('Network.emulateNetworkConditions', conditions);
}

/** Opens a window that is visible and has the focus, whatever other windows do. Failed requests are no faults. */
export async function openPage(context: BrowserContext, colorScheme: Theme = 'light'): Promise<OpenPage> {
  const page = await context.newPage({ type: 'window' });
  if (SLOWDOWN > 1) await slowDown(page);
  await page.emulateFocusedPage(true);
  await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: colorScheme }]);
  return { page, faults: noteFaults(page) };
}

/** Returns the errors of a page, as a list that grows. */
function noteFaults(page: Page): string[] {
  const faults: string[] = [];
  const log = (message: ConsoleMessage) => {
    const failedRequest = message.text().startsWith('Failed to load resource');
    if (['error', 'warn'].includes(message.type()) && !failedRequest) faults.push(message.text());
  };
  page.on('console', log);
  page.on('pageerror', (error) => faults.push(error instanceof Error ? (error.stack ?? error.message) : String(error)));
  page.on('dialog', (dialog) => {
    faults.push(`a dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  return faults;
}

/** Loads a view and waits for its heading. */
export async function show(page: Page, address: string): Promise<void> {
  await page.goto(address);
  await page.waitForSelector('h1');
}

// Selects the elements that contain a text, and those whose text it is.
for (const [name, isExact] of [
  ['has', false],
  ['is', true],
] as const) {
  if (Puppeteer.customQueryHandlerNames().includes(name)) continue;
  Puppeteer.registerCustomQueryHandler(name, {
    queryAll: isExact
      ? (node, text) => (node.textContent?.trim() === text ? [node] : [])
      : (node, text) => (node.textContent?.includes(text) === true ? [node] : []),
  });
}

/** A selector of those elements that contain a text. */
export function has(selector: string, text: string): string {
  return `${selector}::-p-has(${JSON.stringify(text)})`;
}

/** A selector of those elements whose text is `text`. */
export function is(selector: string, text: string): string {
  return `${selector}::-p-is(${JSON.stringify(text)})`;
}

/** A selector of the elements that have this text as their name, although they do not show it. */
export function named(name: string): string {
  return `[aria-label=${JSON.stringify(name)}]`;
}

/** Waits for an element, and returns its text as a person sees it. */
export async function textOf(page: Page, selector: string): Promise<string> {
  await page.waitForSelector(selector);
  return page.$eval(selector, (element) => (element as HTMLElement).innerText);
}

export function textsOf(page: Page, selector: string): Promise<string[]> {
  return page.$$eval(selector, (elements) => elements.map((element) => (element as HTMLElement).innerText));
}

export function countOf(page: Page, selector: string): Promise<number> {
  return page.$$eval(selector, (elements) => elements.length);
}

/** Waits for an element, and returns its attribute. */
export async function attributeOf(page: Page, selector: string, name: string): Promise<string | null> {
  await page.waitForSelector(selector);
  return page.$eval(selector, (element, name) => element.getAttribute(name), name);
}

/** Waits for an input, and returns its value. */
export async function inputOf(page: Page, selector: string): Promise<string> {
  await page.waitForSelector(selector);
  return page.$eval(selector, (element) => (element as HTMLInputElement).value);
}

/** Waits until a person sees a text, anywhere or in an element. */
export async function waitForText(page: Page, wanted: string | RegExp, selector = 'body'): Promise<void> {
  const seen = expect.poll(() => page.$$eval(selector, (all) => all.map((each) => (each as HTMLElement).innerText)));
  await seen.toContainEqual(
    typeof wanted === 'string' ? expect.stringContaining(wanted) : expect.stringMatching(wanted),
  );
}

/**
 * Waits until a view shows all that it was asked for: nothing is loading, and no value belongs to an earlier choice.
 */
export async function waitForWhole(page: Page): Promise<void> {
  await page.waitForSelector('main:not(:has(.loading, [aria-busy=true]))');
}

/** Waits until a view fits the width of the window. */
export async function expectToFit(page: Page, name = ''): Promise<void> {
  const overflow = () => page.$eval('html', (html) => html.scrollWidth - html.clientWidth);
  await expect.poll(overflow, { message: `pixels by which ${name || 'the view'} is too wide` }).toBe(0);
}

/** Returns the address of a window: what `page.url()` returns follows it a little later. */
export function addressOf(page: Page): Promise<string> {
  return page.evaluate(() => location.href);
}

/** Waits until a person does not see a text any more. */
export async function waitForNoText(page: Page, unwanted: string): Promise<void> {
  await expect.poll(() => textOf(page, 'body')).not.toContain(unwanted);
}

/** Sets a text or a value at once: what a page does for each key can take long. */
export function fill(page: Page, selector: string, value: string): Promise<void> {
  return page.locator(selector).fill(value, { typingThreshold: 0 });
}

/** Chooses the option with a label, as soon as there is one. */
export async function choose(page: Page, selector: string, label: string): Promise<void> {
  const valueOfOption = () =>
    page.$eval(
      selector,
      (element, label) => [...(element as HTMLSelectElement).options].find((option) => option.label === label)?.value,
      label,
    );
  await expect.poll(valueOfOption).toBeDefined();
  await fill(page, selector, (await valueOfOption()) ?? '');
}

/** Returns what axe finds, as one line for each rule: in the whole page, or below some selectors. */
export async function accessibilityFaults(page: Page, below: readonly string[] = ['html']): Promise<string[]> {
  await waitForWhole(page);
  await page.evaluate(await readFile(AXE, 'utf8'));
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
  // The best compression takes as long as drawing.
  await page.screenshot({ path: path.join(SCREENSHOTS, `${name}.png`), optimizeForSpeed: true });
}
