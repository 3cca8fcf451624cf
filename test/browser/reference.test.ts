/** The reference of the API in Chromium. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { openPageScene, type PageScene } from './page_scene.ts';
import {
  accessibilityFaults,
  attributeOf,
  countOf,
  expectToFit,
  is,
  openPage,
  THEMES,
  takeScreenshot,
  textOf,
} from './views.ts';

let scene: PageScene;
beforeAll(async () => {
  scene = await openPageScene();
});
afterAll(() => scene?.close());

describe('the reference of the API', () => {
  it('is linked from the page, and a link within it leads to the RPC', async () => {
    const { page, faults } = await openPage(scene.context);
    await page.goto(scene.url);
    await page.goto(scene.url + (await attributeOf(page, is('a', 'API reference'), 'href')));
    await expect.poll(() => textOf(page, 'h1')).toBe('API reference');
    await page.locator(is('nav a', 'BranchTrajectory')).click();
    await expect.poll(() => new URL(page.url()).hash).toBe('#TrajectoryService.BranchTrajectory');
    await expect
      .poll(() => page.$eval('section:target h3', (heading) => heading.getBoundingClientRect().y))
      .toBeLessThan(900);
    expect(faults).toEqual([]);
    await page.close();
  });

  it.each(THEMES)('needs no script, fits 320 px, and has no fault that axe finds, %s', async (theme) => {
    const { page, faults } = await openPage(scene.context, theme);
    const answer = await page.goto(`${scene.url}/docs`);
    expect(answer?.headers()['content-security-policy']).not.toContain('unsafe');
    expect(await countOf(page, 'script, [style], style')).toBe(0);
    for (const width of [1500, 900, 320]) {
      await page.setViewport({ width, height: 900 });
      await takeScreenshot(page, `docs-${theme}-${width}`);
      await expectToFit(page, `the reference at ${width}`);
    }
    await page.setViewport({ width: 1500, height: 900 });
    // All sections have the same parts, and axe takes long for the whole document.
    const parts = ['header', 'nav', 'h1', '#ServerService', '#StateService', '#Seal'];
    expect(await accessibilityFaults(page, parts)).toEqual([]);
    expect(faults).toEqual([]);
    await page.close();
  });
});
