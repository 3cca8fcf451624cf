/** The list of runs, and the rows of a tree that can be collapsed. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import { openPageScene, type PageScene } from './page_scene.ts';
import { attributeOf, countOf, has, is, openPage, ROWS, textsOf, waitForText } from './views.ts';

let scene: PageScene;
beforeAll(async () => {
  scene = await openPageScene();
});
afterAll(() => scene?.close());

it('the list of runs draws the rewards of each run, and draws on when the run grows', async () => {
  const { trajectories, runs } = scene.client;
  const { run } = await runs.createRun({ name: 'rewarded', mainTrajectory: {} });
  const trajectoryId = run?.mainTrajectoryId ?? '';
  const append = (step: number) =>
    trajectories.appendStep({ trajectoryId, step: { stepNumber: BigInt(step), reward: step } });
  for (let step = 0; step < 3; step += 1) await append(step);
  const { page, faults } = await openPage(scene.context);
  await page.goto(`${scene.url}/?text=rewarded`);
  const line = () => attributeOf(page, `${has('tr', 'rewarded')} svg.spark path`, 'd');
  await expect.poll(line).toMatch(/^M1\.0 .*L95\.0 1\.0$/);
  const before = await line();
  await append(3);
  await expect.poll(line).not.toBe(before);
  expect(faults).toEqual([]);
  await page.close();
});

it('the list of trees is live: trees are added, grow, and are removed', async () => {
  const { trajectories } = scene.client;
  const { page, faults } = await openPage(scene.context);
  await page.goto(scene.url);
  await page.waitForSelector('#trees');
  const { trajectory } = await trajectories.createTrajectory({ name: 'a live tree', root: { reward: 3 } });
  const trajectoryId = trajectory?.id ?? '';
  const row = has('tr', 'a live tree');
  await page.waitForSelector(row);
  await trajectories.appendStep({ trajectoryId, step: { stepNumber: 1n, reward: 4 } });
  await waitForText(page, /running\s+2\s+7/, row);
  await trajectories.deleteTrajectory({ trajectoryId });
  await expect.poll(() => countOf(page, row)).toBe(0);
  expect(faults).toEqual([]);
  await page.close();
});

it('all rows of a tree are collapsed and expanded at once, and the address keeps it', async () => {
  const { trajectories } = scene.client;
  const { trajectory } = await trajectories.createTrajectory({ name: 'trunk', root: { reward: 1 } });
  const treeId = trajectory?.id ?? '';
  let parent = treeId;
  // Each branch has a step of its own, at which the next one parts: otherwise all would be branches of the root.
  for (const [depth, name] of ['limb', 'twig', 'leaf'].entries()) {
    const stepNumber = BigInt(depth);
    const { trajectory: branch } = await trajectories.branchTrajectory({ trajectoryId: parent, stepNumber, name });
    parent = branch?.id ?? '';
    await trajectories.appendStep({ trajectoryId: parent, step: { stepNumber: stepNumber + 1n } });
  }
  const { page, faults } = await openPage(scene.context);
  await page.goto(`${scene.url}/trees/${treeId}`);
  const names = () => textsOf(page, `${ROWS} .name`);
  await expect.poll(names).toEqual(['trunk', 'limb', 'twig', 'leaf']);
  await page.locator(is('button', 'Collapse all')).click();
  await expect.poll(names).toEqual(['trunk', 'limb']);
  await page.reload();
  await expect.poll(names).toEqual(['trunk', 'limb']);
  await page.locator(`${has(ROWS, 'limb')} .twist`).click();
  await expect.poll(names).toEqual(['trunk', 'limb', 'twig']);
  await page.locator(is('button', 'Expand all')).click();
  await expect.poll(names).toEqual(['trunk', 'limb', 'twig', 'leaf']);
  expect(faults).toEqual([]);
  await page.close();
});
