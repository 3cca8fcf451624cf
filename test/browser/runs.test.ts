/** The list of runs, and the metrics of one run or several. */
import type { Page } from 'puppeteer-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { openPageScene, type PageScene } from './page_scene.ts';
import {
  accessibilityFaults,
  addressOf,
  attributeOf,
  countOf,
  expectToFit,
  fill,
  has,
  is,
  named,
  openPage,
  takeScreenshot,
  textsOf,
  waitForText,
} from './views.ts';

const LOSS = 'canvas[aria-label^="train/loss"]';
const ORDER = `${has('label', 'Order')} select`;
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

const names = async (page: Page) => textsOf(page, 'main section:first-of-type tbody th a');

describe('the list of runs', () => {
  it('is filtered and ordered by the address, which a reload restores', async () => {
    const { page, faults } = await openPage(scene.context);
    await page.goto(`${scene.url}/?text=sweep`);
    await expect.poll(() => names(page)).toEqual(['sweep a', 'sweep b', 'sweep c', 'sweep d']);
    await fill(page, ORDER, 'name');
    await page.locator(is('button', 'Reverse')).click();
    await expect.poll(() => names(page)).toEqual(['sweep d', 'sweep c', 'sweep b', 'sweep a']);
    await fill(page, ORDER, 'reward');
    await page.locator(is('button', 'Reverse')).click();
    await expect.poll(async () => (await names(page))[0]).toBe('sweep b');
    await fill(page, named('filter runs by labels'), 'lr=0.01');
    await fill(page, `${has('label', 'Status')} select`, 'failed');
    await expect.poll(() => names(page)).toEqual(['sweep a']);
    await fill(page, named('filter runs by name or label'), 'no such');
    await waitForText(page, 'No run matches.');
    await fill(page, named('filter runs by name or label'), 'SWEEP');
    await expect.poll(() => names(page)).toEqual(['sweep a']);
    const address = await addressOf(page);
    await page.reload();
    await expect.poll(() => names(page)).toEqual(['sweep a']);
    expect(await addressOf(page)).toBe(address);
    expect(faults).toEqual([]);
    await page.close();
  });

  it('shows a run that begins to match, and takes away one that does not match any more', async () => {
    const { page, faults } = await openPage(scene.context);
    await page.goto(`${scene.url}/?text=passing&status=running`);
    await waitForText(page, 'No run matches.');
    const { run } = await scene.client.runs.createRun({ name: 'passing', initialStatus: Status.RUNNING });
    await expect.poll(() => names(page)).toEqual(['passing']);
    await scene.client.runs.failRun({ runId: run?.id ?? '' });
    await waitForText(page, 'No run matches.');
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('the metrics of several runs', () => {
  it('are overlaid from the list, or shown as mean by a label, and found by typing', async () => {
    const { page, faults } = await openPage(scene.context);
    await page.goto(`${scene.url}/?text=sweep`);
    for (const [at, name] of ['sweep d', 'sweep c', 'sweep b', 'sweep a'].entries()) {
      await page.locator(named(`overlay ${name}`)).fill(true);
      await expect.poll(() => countOf(page, 'input:checked')).toBe(at + 1);
    }
    await page.locator(is('a', 'Overlay 4 runs')).click();
    const loss = () => attributeOf(page, LOSS, 'aria-label');
    await expect.poll(loss).toMatch(/sweep d, 3,?\D?000 points; sweep c/);
    await takeScreenshot(page, 'overlay-light-1500');
    await fill(page, `${has('label', 'Lines')} select`, 'lr');
    await expect.poll(loss).toContain('lr=0.1 (2), 6');
    await fill(page, 'input[type=range]', '0.9');
    await fill(page, named('filter metrics'), 'LOSS');
    await expect.poll(() => countOf(page, '.metric')).toBe(1);
    await takeScreenshot(page, 'band-light-1500');
    const address = await addressOf(page);
    await page.reload();
    await expect.poll(loss).toContain('lr=0.1 (2), 6');
    expect(await addressOf(page)).toBe(address);
    await page.locator(is('.metric button', 'Table')).click();
    await waitForText(page, /^0\s+[\d.]+ \([\d.]+ to [\d.]+\)/, '.metric tbody tr');
    await page.setViewport({ width: 320, height: 900 });
    await takeScreenshot(page, 'band-light-320');
    await expectToFit(page);
    expect(await accessibilityFaults(page)).toEqual([]);
    expect(faults).toEqual([]);
    await page.close();
  });

  it('read only new points, in few bytes, and the visible range again when a person zooms', async () => {
    const [runId = ''] = runIds;
    const { page, faults } = await openPage(scene.context);
    const sizes: number[] = [];
    page.on('response', async (response) => {
      if (response.url().endsWith('/ReadMetrics')) sizes.push((await response.content()).length);
    });
    await page.goto(`${scene.url}/runs/${runId}`);
    const loss = () => attributeOf(page, LOSS, 'aria-label');
    const shows = (count: string) => expect.poll(loss).toMatch(new RegExp(count));
    await shows('3\\D?000 points');
    await expect.poll(() => sizes.length).toBeGreaterThan(0);
    const before = sizes.length;
    for (let i = 0; i < 3; i += 1) {
      const points = [{ key: 'train/loss', metricStep: BigInt(3000 + i), value: 1 }];
      await scene.client.runs.logMetrics({ runId, points });
      await shows(`3\\D?00${i + 1} points`);
    }
    // A watch that begins again, when another one is added, reads the whole line once more.
    await expect.poll(() => Math.min(...sizes.slice(before))).toBeLessThan(2048);
    const box = await (await page.$(LOSS))?.boundingBox();
    if (!box) throw new Error('the plot has no place');
    await page.mouse.move(box.x + 100, box.y + 50);
    await page.mouse.down();
    await page.mouse.move(box.x + 160, box.y + 50, { steps: 3 });
    await page.mouse.up();
    await expect.poll(() => new URL(page.url()).searchParams.get('to')).not.toBeNull();
    const { searchParams } = new URL(await addressOf(page));
    const points = Number(searchParams.get('to')) - Number(searchParams.get('from')) + 1;
    await expect
      .poll(async () => Number(/([\d\D]+) points/.exec((await loss()) ?? '')?.[1]?.replace(/\D/g, '')))
      .toBe(points);
    expect(faults).toEqual([]);
    await page.close();
  });
});
