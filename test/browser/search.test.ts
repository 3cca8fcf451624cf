/** The search view, and the keys of all views. */
import type { Page } from 'puppeteer-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { openPageScene, type PageScene } from './page_scene.ts';
import {
  accessibilityFaults,
  countOf,
  fill,
  has,
  inputOf,
  openPage,
  takeScreenshot,
  textOf,
  textsOf,
  waitForText,
} from './views.ts';

/** A server of its own: the tests state all that a search everywhere finds. */
let server: TestServer;
let scene: PageScene;
let treeId: string;
let otherId: string;
beforeAll(async () => {
  server = await startTestServer();
  scene = await openPageScene(server.url);
  const { trajectories, runs } = scene.client;
  treeId = await treeWith('kettle', ['The water is cold.', 'The <b>Kettle</b> whistles.']);
  otherId = await treeWith('other', ['A kettle of fish.']);
  await runs.createRun({ name: 'kettle run', labels: { device: 'kettle' } });
  await trajectories.updateTrajectory({
    trajectoryId: otherId,
    updateMask: { paths: ['labels'] },
    labels: { at: 'sea' },
  });
});
afterAll(async () => {
  await scene?.close();
  await server?.stop();
});

async function treeWith(name: string, texts: readonly string[]): Promise<string> {
  const { trajectory } = await scene.client.trajectories.createTrajectory({ name });
  const trajectoryId = trajectory?.id ?? '';
  for (const [at, text] of texts.entries()) {
    const step = { stepNumber: BigInt(at), observations: [{ content: { text } }] };
    await scene.client.trajectories.appendStep({ trajectoryId, step });
  }
  return trajectoryId;
}

/** Loads a view and waits for its heading. */
async function show(page: Page, view: string): Promise<void> {
  await page.goto(scene.url + view);
  await page.waitForSelector('h1');
}

describe('the search view', () => {
  it('finds names, labels and text in steps, and says how much it has searched', async () => {
    const { page, faults } = await openPage(scene.context);
    await show(page, '/');
    await page.keyboard.press('/');
    await page.keyboard.type('kettle');
    await waitForText(page, /2 matches in 3 steps, everything searched/);
    await expect.poll(() => textsOf(page, 'tbody th a')).toEqual(['kettle run', 'kettle']);
    // The newest trajectory is searched first. Capitals match small letters, and markup stays text.
    await expect
      .poll(() => textsOf(page, '.hits li'))
      .toEqual([
        expect.stringMatching(/^other, step 0 .*text\s+A kettle of fish\.$/s),
        expect.stringMatching(/^kettle, step 1 .*\s+The <b>Kettle<\/b> whistles\.$/s),
      ]);
    await expect.poll(() => textsOf(page, 'mark')).toEqual(['kettle', 'Kettle']);
    expect(await accessibilityFaults(page)).toEqual([]);
    await takeScreenshot(page, 'search-light-1500');
    await page.reload();
    await page.waitForSelector('.hits li');
    await expect.poll(() => inputOf(page, 'input[type=search]')).toBe('kettle');
    await fill(page, 'input[type=search]', 'sea');
    await waitForText(page, /0 matches in 3 steps/);
    await expect.poll(() => textsOf(page, 'tbody th a')).toEqual(['other']);
    expect(faults).toEqual([]);
    await page.close();
  });

  it('searches the tree that is open, then everywhere, and a match leads to its step', async () => {
    const { page, faults } = await openPage(scene.context);
    await show(page, `/trees/${treeId}`);
    await page.keyboard.press('/');
    await page.keyboard.type('kettle');
    await waitForText(page, /1 match in 2 steps, everything searched/);
    await page.locator(has('button', 'Search everywhere')).click();
    await waitForText(page, /2 matches in 3 steps/);
    await page.goBack();
    await waitForText(page, /1 match in 2 steps/);
    await page.locator('.hits a').click();
    await waitForText(page, 'The <b>Kettle</b> whistles.');
    await expect.poll(() => new URL(page.url()).pathname).toBe(`/trees/${treeId}`);
    await expect.poll(() => inputOf(page, '.stepper input[type=number]')).toBe('1');
    expect(faults).toEqual([]);
    await page.close();
  });

  it('continues beyond the matches of one call', async () => {
    const many = await treeWith(
      'many',
      Array.from({ length: 105 }, () => 'needle'),
    );
    const { page, faults } = await openPage(scene.context);
    await show(page, `/search?q=needle&in=trajectory:${many}`);
    await page.locator(has('button', 'Search further')).click();
    await waitForText(page, /105 matches in 105 steps, everything searched/);
    await expect.poll(() => countOf(page, '.hits li')).toBe(105);
    expect(faults).toEqual([]);
    await page.close();
    await scene.client.trajectories.deleteTrajectory({ trajectoryId: many });
  });

  it('shows the message of the server if it refuses, and freezes at nothing', async () => {
    const { page, faults } = await openPage(scene.context);
    await show(page, '/search?q=x&in=tree:nonsense');
    await waitForText(page, 'tree_id', '.problem');
    await show(page, `/search?q=${encodeURIComponent('𝒳\u202e'.repeat(128))}`);
    await waitForText(page, /text/, '.problem');
    await show(page, '/search?q=%00');
    await page.waitForSelector('.search');
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('the keys', () => {
  it('are listed by ?, and not while a person types', async () => {
    const { page, faults } = await openPage(scene.context);
    await show(page, '/search');
    await page.keyboard.type('?/j');
    await expect.poll(() => inputOf(page, 'input[type=search]')).toBe('?/j');
    expect(await countOf(page, 'dialog[open]')).toBe(0);
    await show(page, '/');
    await page.keyboard.press('?');
    await waitForText(page, 'search in what is open', 'dialog[open]');
    expect(await accessibilityFaults(page)).toEqual([]);
    await page.keyboard.press('Escape');
    await expect.poll(() => countOf(page, 'dialog[open]')).toBe(0);
    expect(faults).toEqual([]);
    await page.close();
  });

  it('go from row to row of a list, and open a row', async () => {
    const { page, faults } = await openPage(scene.context);
    await show(page, '/');
    // Runs and trees are read by calls of their own.
    await waitForText(page, 'kettle run', 'tbody a');
    await page.waitForSelector(`a[href="/trees/${treeId}"]`);
    const focused = () => textOf(page, ':focus');
    await page.keyboard.press('j');
    await expect.poll(focused).toBe('kettle run');
    await page.keyboard.press('ArrowDown');
    await expect.poll(focused).toBe('other');
    await page.keyboard.press('j');
    await page.keyboard.press('j');
    await expect.poll(focused).toBe('kettle');
    await page.keyboard.press('k');
    await expect.poll(focused).toBe('other');
    await page.keyboard.press('Enter');
    await expect.poll(() => page.url()).toBe(`${scene.url}/trees/${otherId}`);
    expect(faults).toEqual([]);
    await page.close();
  });
});
