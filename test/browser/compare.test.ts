/** Comparisons: of trajectories side by side, and of branches by a label. */
import type { Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { openPageScene, type PageScene } from './page_scene.ts';
import { accessibilityFaults, openPage, takeScreenshot } from './views.ts';

let scene: PageScene;
/** A root of 8 steps, two branches after step 3 that part at step 4 and at step 6, and one after step 5. */
let ids: readonly [root: string, early: string, late: string, third: string];
beforeAll(async () => {
  scene = await openPageScene();
  const root = await grow({ name: 'root' }, 0, ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h']);
  const early = await branch(root, 3n, { name: 'early', labels: { lr: '0.1' } }, ['X', 'Y']);
  const late = await branch(root, 3n, { name: 'late', labels: { lr: '0.01' } }, ['e', 'f', 'Z']);
  const third = await branch(root, 5n, { name: 'third', labels: { lr: '0.1' } }, ['P', 'Q', 'R']);
  ids = [root, early, late, third];
});
afterAll(() => scene?.close());

async function grow(given: { readonly name: string }, from: number, actions: readonly string[]): Promise<string> {
  const { trajectory } = await scene.client.trajectories.createTrajectory(given);
  await append(trajectory?.id ?? '', from, actions);
  return trajectory?.id ?? '';
}

async function branch(
  trajectoryId: string,
  stepNumber: bigint,
  given: { readonly name: string; readonly labels: Record<string, string> },
  actions: readonly string[],
): Promise<string> {
  const made = await scene.client.trajectories.branchTrajectory({ trajectoryId, stepNumber, ...given });
  await append(made.trajectory?.id ?? '', Number(stepNumber) + 1, actions);
  return made.trajectory?.id ?? '';
}

async function append(trajectoryId: string, from: number, actions: readonly string[]): Promise<void> {
  for (const [at, text] of actions.entries()) {
    const step = {
      stepNumber: BigInt(from + at),
      actions: [{ content: { text } }],
      reward: /[A-Z]/.test(text) ? 2 : 1,
    };
    await scene.client.trajectories.appendStep({ trajectoryId, step });
  }
}

async function show(page: Page, view: string): Promise<void> {
  await page.goto(scene.url + view);
  await page.waitForSelector('h1');
}

describe('trajectories side by side', () => {
  it('have one line for what they share, then columns in which the first difference of each is marked', async () => {
    const { page, faults } = await openPage(scene.browser);
    const [root, early, late] = ids;
    await show(page, `/compare?ids=${root},${early},${late}`);
    const row = (step: string) =>
      page.locator('.columns tbody tr', { has: page.locator('th', { hasText: new RegExp(`^${step}$`) }) });
    expect(await row('0 to 3').innerText()).toContain('4 steps, shared by all');
    await row('4').locator('a').first().waitFor();
    expect(await row('4').locator('td').allInnerTexts()).toEqual([
      expect.stringMatching(/^e\s+reward 1$/),
      expect.stringMatching(/^first difference\s*X\s+reward 2$/),
      expect.stringMatching(/^e\s+reward 1$/),
    ]);
    expect(await row('6').locator('td').allInnerTexts()).toEqual([
      expect.stringMatching(/^g/),
      'ended',
      expect.stringMatching(/^first difference\s*Z/),
    ]);
    expect(await accessibilityFaults(page)).toEqual([]);
    await takeScreenshot(page, 'compare-columns-light-1500');
    await page.click('text=Earlier steps');
    await row('0').locator('a').first().waitFor();
    await page.reload();
    await row('0').locator('a').first().waitFor();
    await row('3').locator('a').first().click();
    await page.waitForURL(`**/trees/${root}?at=${root}&step=3`);
    expect(faults).toEqual([]);
    await page.close();
  });

  it('plot how their rewards differ, and their values can be read as a table', async () => {
    const { page, faults } = await openPage(scene.browser);
    const [root, early] = ids;
    await show(page, `/compare?ids=${root},${early}`);
    const plot = page.locator('.metric', { hasText: 'Difference from root' });
    await plot.getByRole('button', { name: 'Table' }).click();
    const values = await plot.locator('tbody tr').allInnerTexts();
    expect(values.map((line) => line.split(/\s+/))).toEqual(
      [0, 0, 0, 0, 1, 2].map((difference, step) => [`${step}`, `${difference}`]),
    );
    expect(faults).toEqual([]);
    await page.close();
  });

  it('are added and removed, from two to six', async () => {
    const { page, faults } = await openPage(scene.browser);
    const [root, early, late, third] = ids;
    await show(page, `/compare?ids=${root},${early}`);
    await page.getByLabel('add a trajectory').selectOption({ label: 'late' });
    await page.getByLabel('add a trajectory').selectOption({ label: 'third' });
    await page.waitForURL(`**/compare?ids=${[root, early, late, third].join('%2C')}`);
    await page.getByRole('button', { name: 'remove early' }).click();
    await page.waitForURL(`**/compare?ids=${[root, late, third].join('%2C')}`);
    await page.goBack();
    await page.getByRole('button', { name: 'remove early' }).waitFor();
    for (const wrong of ['', `?ids=${root}`, '?ids=a,b,c,d,e,f,g']) {
      await page.goto(`${scene.url}/compare${wrong}`);
      await page.waitForSelector('.problem >> text=two to six trajectories');
    }
    await page.goto(`${scene.url}/compare?ids=nonsense,${root}`);
    await page.waitForSelector('.problem');
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('branches by label', () => {
  it('are chosen by label and values, and compared in pairs', async () => {
    const { page, faults } = await openPage(scene.browser);
    const [root] = ids;
    await show(page, `/compare?ids=${ids.slice(0, 2).join()}`);
    await page.click('text=Compare branches by label');
    await page.getByLabel('label').selectOption('lr');
    await page.waitForSelector('text=Mean difference, 0.1 minus 0.01');
    const { pairs, meanDifference } = await scene.client.trajectories.compareBranches({
      treeId: root,
      label: 'lr',
      value: '0.01',
      otherValue: '0.1',
    });
    expect([pairs.length, meanDifference]).toEqual([1, 0]);
    expect(await page.locator('tbody tr').innerText()).toMatch(/step 3\s+4\s+4\s+0$/);
    expect(await accessibilityFaults(page)).toEqual([]);
    await takeScreenshot(page, 'branches-light-1500');
    await page.getByLabel('other value').selectOption('0.01');
    await page.waitForSelector('.problem >> text=must differ');
    expect(faults).toEqual([]);
    await page.close();
  });

  it('have nothing to compare without labels, and a wrong tree is named', async () => {
    const { page, faults } = await openPage(scene.browser);
    const other = await grow({ name: 'alone' }, 0, ['a']);
    await show(page, `/compare?tree=${other}`);
    await page.waitForSelector('text=No trajectory of this tree has a label');
    await show(page, '/compare?tree=nonsense&label=x&a=1&b=2');
    await page.waitForSelector('.problem');
    expect(faults).toEqual([]);
    await page.close();
  });
});
