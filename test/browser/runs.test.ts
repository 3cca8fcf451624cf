/** The list of runs, and the metrics of one run or several. */
import type { Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { openPageScene, type PageScene } from './page_scene.ts';
import { accessibilityFaults, openPage, takeScreenshot } from './views.ts';

const RATES = ['0.1', '0.1', '0.01', '0.01'];

let scene: PageScene;
const runIds: string[] = [];
beforeAll(async () => {
  scene = await openPageScene();
  const { runs, trajectories } = scene.client;
  for (const [at, lr] of RATES.entries()) {
    const { run } = await runs.createRun({
      name: `sweep ${'dcba'[at]}`,
      labels: { lr },
      initialStatus: Status.RUNNING,
      mainTrajectory: {},
    });
    const runId = run?.id ?? '';
    runIds.push(runId);
    const step = { stepNumber: 0n, reward: at % 3 };
    await trajectories.appendStep({ trajectoryId: run?.mainTrajectoryId ?? '', step });
    const points = Array.from({ length: 3000 }, (_, i) => {
      const value = Math.exp(-i / 900) * (at + 1) + (i === 1234 ? 9 : 0);
      return { key: 'train/loss', metricStep: BigInt(i), value };
    });
    await runs.logMetrics({ runId, points: [...points, { key: 'eval/score', metricStep: 0n, value: at }] });
  }
  await runs.failRun({ runId: runIds[3] ?? '' });
});
afterAll(() => scene?.close());

const names = async (page: Page) => page.locator('main section:first-of-type tbody th a').allInnerTexts();

describe('the list of runs', () => {
  it('is filtered and ordered by the address, which a reload restores', async () => {
    const { page, faults } = await openPage(scene.browser);
    await page.goto(scene.url);
    await expect.poll(() => names(page)).toEqual(['sweep a', 'sweep b', 'sweep c', 'sweep d']);
    await page.selectOption('label:has-text("Order") select', 'name');
    await page.getByRole('button', { name: 'Reverse' }).click();
    await expect.poll(() => names(page)).toEqual(['sweep d', 'sweep c', 'sweep b', 'sweep a']);
    await page.selectOption('label:has-text("Order") select', 'reward');
    await page.getByRole('button', { name: 'Reverse' }).click();
    await expect.poll(async () => (await names(page))[0]).toBe('sweep b');
    await page.getByLabel('filter runs by labels').fill('lr=0.01');
    await page.selectOption('label:has-text("Status") select', 'failed');
    await expect.poll(() => names(page)).toEqual(['sweep a']);
    await page.getByLabel('filter runs by name or label').fill('no such');
    await page.waitForSelector('text=No run matches.');
    await page.getByLabel('filter runs by name or label').fill('SWEEP');
    await expect.poll(() => names(page)).toEqual(['sweep a']);
    const address = page.url();
    await page.reload();
    await expect.poll(() => names(page)).toEqual(['sweep a']);
    expect(page.url()).toBe(address);
    expect(faults).toEqual([]);
    await page.close();
  });

  it('shows a run that begins to match, and takes away one that does not match any more', async () => {
    const { page, faults } = await openPage(scene.browser);
    await page.goto(`${scene.url}/?text=passing&status=running`);
    await page.waitForSelector('text=No run matches.');
    const { run } = await scene.client.runs.createRun({ name: 'passing', initialStatus: Status.RUNNING });
    await expect.poll(() => names(page)).toEqual(['passing']);
    await scene.client.runs.failRun({ runId: run?.id ?? '' });
    await page.waitForSelector('text=No run matches.');
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('the metrics of several runs', () => {
  it('are overlaid from the list, or shown as mean by a label, and found by typing', async () => {
    const { page, faults } = await openPage(scene.browser);
    await page.goto(scene.url);
    for (const name of ['sweep d', 'sweep c', 'sweep b', 'sweep a']) await page.getByLabel(`overlay ${name}`).check();
    await page.getByRole('link', { name: 'Overlay 4 runs' }).click();
    const loss = page.locator('canvas[aria-label^="train/loss"]');
    await expect.poll(() => loss.getAttribute('aria-label')).toMatch(/sweep d, 3,?\D?000 points; sweep c/);
    await takeScreenshot(page, 'overlay-light-1500');
    await page.selectOption('label:has-text("Lines") select', 'lr');
    await expect.poll(() => loss.getAttribute('aria-label')).toContain('lr=0.1 (2), 6');
    await page.locator('input[type=range]').fill('0.9');
    await page.getByLabel('filter metrics').fill('LOSS');
    await expect.poll(() => page.locator('.metric').count()).toBe(1);
    await takeScreenshot(page, 'band-light-1500');
    const address = page.url();
    await page.reload();
    await expect.poll(() => loss.getAttribute('aria-label')).toContain('lr=0.1 (2), 6');
    expect(page.url()).toBe(address);
    await page.setViewportSize({ width: 320, height: 900 });
    await takeScreenshot(page, 'band-light-320');
    expect(await page.locator('html').evaluate((html) => html.scrollWidth - html.clientWidth)).toBe(0);
    expect(await accessibilityFaults(page)).toEqual([]);
    expect(faults).toEqual([]);
    await page.close();
  });

  it('read only new points, in few bytes, and the visible range again when a person zooms', async () => {
    const [runId = ''] = runIds;
    const { page, faults } = await openPage(scene.browser);
    const sizes: number[] = [];
    page.on('response', async (response) => {
      if (response.url().endsWith('/ReadMetrics')) sizes.push((await response.body()).length);
    });
    await page.goto(`${scene.url}/runs/${runId}`);
    const loss = page.locator('canvas[aria-label^="train/loss"]');
    const shows = (count: string) => expect.poll(() => loss.getAttribute('aria-label')).toMatch(new RegExp(count));
    await shows('3\\D?000 points');
    await expect.poll(() => sizes.length).toBeGreaterThan(0);
    const before = sizes.length;
    for (let i = 0; i < 3; i += 1) {
      const points = [{ key: 'train/loss', metricStep: BigInt(3000 + i), value: 1 }];
      await scene.client.runs.logMetrics({ runId, points });
      await shows(`3\\D?00${i + 1} points`);
    }
    await expect.poll(() => sizes.length).toBeGreaterThan(before);
    // A watch that begins again, when another one is added, reads the whole line once more.
    expect(Math.min(...sizes.slice(before))).toBeLessThan(2048);
    const box = await loss.boundingBox();
    if (box === null) throw new Error('the plot has no place');
    await page.mouse.move(box.x + 100, box.y + 50);
    await page.mouse.down();
    await page.mouse.move(box.x + 160, box.y + 50, { steps: 3 });
    await page.mouse.up();
    await expect.poll(() => new URL(page.url()).searchParams.get('to')).not.toBeNull();
    const { searchParams } = new URL(page.url());
    const points = Number(searchParams.get('to')) - Number(searchParams.get('from')) + 1;
    await expect
      .poll(async () =>
        Number(/([\d\D]+) points/.exec((await loss.getAttribute('aria-label')) ?? '')?.[1]?.replace(/\D/g, '')),
      )
      .toBe(points);
    expect(faults).toEqual([]);
    await page.close();
  });
});
