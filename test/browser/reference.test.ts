/** The reference of the API in Chromium. */
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createDatabase, type TestDatabase } from '../support/database.ts';
import { type SpawnedServer, spawnServer } from '../support/spawned-server.ts';
import { accessibilityFaults, launch, openPage, takeScreenshot } from './views.ts';

let browser: Browser;
let database: TestDatabase;
let server: SpawnedServer;
beforeAll(async () => {
  database = await createDatabase('sqlite');
  server = await spawnServer({ database: database.url });
  browser = await launch();
});
afterAll(async () => {
  await browser?.close();
  await server?.kill();
  await database?.drop();
});

describe('the reference of the API', () => {
  it('is linked from the page, and a link within it leads to the RPC', async () => {
    const { page, faults } = await openPage(browser);
    await page.goto(server.url);
    await page.goto(server.url + (await page.getAttribute('text=API reference', 'href')));
    expect(await page.locator('h1').innerText()).toBe('API reference');
    await page.click('nav >> text=BranchTrajectory');
    expect(new URL(page.url()).hash).toBe('#TrajectoryService.BranchTrajectory');
    await expect
      .poll(() =>
        page
          .locator('section:target h3')
          .boundingBox()
          .then((box) => box?.y ?? -1),
      )
      .toBeLessThan(900);
    expect(faults).toEqual([]);
    await page.close();
  });

  it.each(['light', 'dark'] as const)(
    'needs no script, fits 320 px, and has no fault that axe finds, %s',
    async (theme) => {
      const { page, faults } = await openPage(browser, theme);
      const answer = await page.goto(`${server.url}/docs`);
      expect(answer?.headers()['content-security-policy']).not.toContain('unsafe');
      expect(await page.locator('script, [style], style').count()).toBe(0);
      const found: string[] = [];
      for (const width of [1500, 900, 320]) {
        await page.setViewportSize({ width, height: 900 });
        await takeScreenshot(page, `docs-${theme}-${width}`);
        const overflow = await page.locator('html').evaluate((html) => html.scrollWidth - html.clientWidth);
        if (overflow > 0) found.push(`at ${width}: ${overflow} px too wide`);
      }
      await page.setViewportSize({ width: 1500, height: 900 });
      // All sections have the same parts, and axe takes long for the whole document.
      found.push(
        ...(await accessibilityFaults(page, ['header', 'nav', 'h1', '#ServerService', '#StateService', '#Seal'])),
      );
      expect(found).toEqual([]);
      expect(faults).toEqual([]);
      await page.close();
    },
  );
});
