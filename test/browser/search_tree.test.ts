/** Search trees: trajectories with the metrics `visits` and `value`. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { openPageScene, type PageScene } from './page_scene.ts';
import { accessibilityFaults, countOf, has, is, openPage, takeScreenshot } from './views.ts';

const CELLS = '.icicle-cells span';

let scene: PageScene;
beforeAll(async () => {
  scene = await openPageScene();
});
afterAll(() => scene?.close());

describe('a search tree', () => {
  it('is drawn by visits and value, beside the rows, and a cell selects its trajectory', async () => {
    const { trajectories } = scene.client;
    const { trajectory } = await trajectories.createTrajectory({ name: 'root' });
    const trajectoryId = trajectory?.id ?? '';
    await trajectories.appendStep({ trajectoryId, step: { stepNumber: 0n } });
    const measure = (id: string, visits: number, value: number) =>
      trajectories.updateTrajectory({
        trajectoryId: id,
        metrics: { visits, value },
        updateMask: { paths: ['metrics'] },
      });
    await measure(trajectoryId, 10, 0.5);
    for (const [name, visits, value] of [
      ['often', 7.5, 0.9],
      ['seldom', 1, -0.2],
      ['never', Number.NaN, Number.POSITIVE_INFINITY],
    ] as const) {
      const made = await trajectories.branchTrajectory({ trajectoryId, stepNumber: 0n, name });
      await measure(made.trajectory?.id ?? '', visits, value);
    }
    const { page, faults } = await openPage(scene.context);
    await page.goto(`${scene.url}/trees/${trajectoryId}`);
    await expect.poll(() => countOf(page, CELLS)).toBe(3);
    const titles = () => page.$$eval(CELLS, (all) => all.map((each) => (each as HTMLElement).title));
    await expect
      .poll(titles)
      .toEqual(['root: visits 10, value 0.5', 'often: visits 7.5, value 0.9', 'seldom: visits 1, value −0.2']);
    const share = async () => {
      const [root = 1, often = 0] = await page.$$eval(CELLS, (all) =>
        all.map((each) => each.getBoundingClientRect().width),
      );
      return often / root;
    };
    await expect.poll(share).toBeCloseTo(0.75, 2);
    await page.locator(`${CELLS}:nth-of-type(2)`).click();
    await page.waitForSelector(has('[aria-selected=true]', 'often'));
    await page.locator(is('.icicle button', 'Table')).click();
    await expect.poll(() => countOf(page, '.icicle tbody tr')).toBe(4);
    expect(await accessibilityFaults(page)).toEqual([]);
    await takeScreenshot(page, 'search-tree-light-1500');
    expect(faults).toEqual([]);
    await page.close();
  });
});
