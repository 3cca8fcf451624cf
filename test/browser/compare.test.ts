/** Comparisons: of trajectories side by side, and of branches by a label. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { openPageScene, type PageScene } from './page_scene.ts';
import {
  accessibilityFaults,
  choose,
  has,
  is,
  named,
  openPage,
  show,
  takeScreenshot,
  textsOf,
  waitForText,
} from './views.ts';

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

describe('trajectories side by side', () => {
  it('have one line for what they share, then columns in which the first difference of each is marked', async () => {
    const { page, faults } = await openPage(scene.context);
    const [root, early, late] = ids;
    await show(page, `${scene.url}/compare?ids=${root},${early},${late}`);
    /** Cells of a row, which follow its head. */
    const cells = (step: string) => `${is('.columns tbody th', step)} ~ td`;
    await waitForText(page, '4 steps, shared by all', cells('0 to 3'));
    await expect
      .poll(() => textsOf(page, cells('4')))
      .toEqual([
        expect.stringMatching(/^e\s+reward 1$/),
        expect.stringMatching(/^first difference\s*X\s+reward 2$/),
        expect.stringMatching(/^e\s+reward 1$/),
      ]);
    await expect
      .poll(() => textsOf(page, cells('6')))
      .toEqual([expect.stringMatching(/^g/), 'ended', expect.stringMatching(/^first difference\s*Z/)]);
    expect(await accessibilityFaults(page)).toEqual([]);
    await takeScreenshot(page, 'compare-columns-light-1500');
    await page.locator(has('button', 'Earlier steps')).click();
    await page.waitForSelector(`${cells('0')} a`);
    await page.reload();
    await page.waitForSelector(`${cells('0')} a`);
    await page.locator(`${cells('3')} a`).click();
    await expect.poll(() => page.url()).toBe(`${scene.url}/trees/${root}?at=${root}&step=3`);
    expect(faults).toEqual([]);
    await page.close();
  });

  it('plot how their rewards differ, and their values can be read as a table', async () => {
    const { page, faults } = await openPage(scene.context);
    const [root, early] = ids;
    await show(page, `${scene.url}/compare?ids=${root},${early}`);
    const plot = has('.metric', 'Difference from root');
    await page.locator(`${plot} ${is('button', 'Table')}`).click();
    const values = async () => (await textsOf(page, `${plot} tbody tr`)).map((line) => line.split(/\s+/));
    await expect.poll(values).toEqual([0, 0, 0, 0, 1, 2].map((difference, step) => [`${step}`, `${difference}`]));
    expect(faults).toEqual([]);
    await page.close();
  });

  it('are added and removed, from two to six', async () => {
    const { page, faults } = await openPage(scene.context);
    const [root, early, late, third] = ids;
    await show(page, `${scene.url}/compare?ids=${root},${early}`);
    await choose(page, named('add a trajectory'), 'late');
    await choose(page, named('add a trajectory'), 'third');
    await expect.poll(() => page.url()).toBe(`${scene.url}/compare?ids=${[root, early, late, third].join('%2C')}`);
    await page.locator(named('remove early')).click();
    await expect.poll(() => page.url()).toBe(`${scene.url}/compare?ids=${[root, late, third].join('%2C')}`);
    await page.goBack();
    await page.waitForSelector(named('remove early'));
    for (const wrong of ['', `?ids=${root}`, '?ids=a,b,c,d,e,f,g']) {
      await page.goto(`${scene.url}/compare${wrong}`);
      await waitForText(page, 'two to six trajectories', '.problem');
    }
    await page.goto(`${scene.url}/compare?ids=nonsense,${root}`);
    await page.waitForSelector('.problem');
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('branches by label', () => {
  it('are chosen by label and values, and compared in pairs', async () => {
    const { page, faults } = await openPage(scene.context);
    const [root] = ids;
    await show(page, `${scene.url}/compare?ids=${ids.slice(0, 2).join()}`);
    await page.locator('::-p-text(Compare branches by label)').click();
    await choose(page, named('label'), 'lr');
    await waitForText(page, 'Mean difference, 0.1 minus 0.01');
    const { pairs, meanDifference } = await scene.client.trajectories.compareBranches({
      treeId: root,
      label: 'lr',
      value: '0.01',
      otherValue: '0.1',
    });
    expect([pairs.length, meanDifference]).toEqual([1, 0]);
    await waitForText(page, /step 3\s+4\s+4\s+0$/, 'tbody tr');
    expect(await accessibilityFaults(page)).toEqual([]);
    await takeScreenshot(page, 'branches-light-1500');
    await choose(page, named('other value'), '0.01');
    await waitForText(page, 'must differ', '.problem');
    expect(faults).toEqual([]);
    await page.close();
  });

  it('have nothing to compare without labels, and a wrong tree is named', async () => {
    const { page, faults } = await openPage(scene.context);
    const other = await grow({ name: 'alone' }, 0, ['a']);
    await show(page, `${scene.url}/compare?tree=${other}`);
    await waitForText(page, 'No trajectory of this tree has a label');
    await show(page, `${scene.url}/compare?tree=nonsense&label=x&a=1&b=2`);
    await page.waitForSelector('.problem');
    expect(faults).toEqual([]);
    await page.close();
  });
});
