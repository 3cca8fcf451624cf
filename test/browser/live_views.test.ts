/** Views that follow what they show: groups, rollouts, comparisons, tags, and trees of runs. */
import type { Page } from 'puppeteer-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { openPageScene, type PageScene } from './page_scene.ts';
import { attributeOf, countOf, fill, has, is, openPage, ROWS, show, textOf, textsOf, waitForText } from './views.ts';

let scene: PageScene;
beforeAll(async () => {
  scene = await openPageScene();
});
afterAll(() => scene?.close());

async function createRollout(name: string) {
  const { runs, rollouts } = scene.client;
  const { run } = await runs.createRun({ name });
  const runId = run?.id ?? '';
  await runs.startRun({ runId });
  const { stage } = await runs.getOrCreateStage({ runId, kind: StageKind.TRAIN_STEP, number: 1n });
  const stageId = stage?.id ?? '';
  await runs.startStage({ stageId });
  const made = await rollouts.createRollouts({ stageId, rollouts: [{ groupNumber: 0n, number: 0n }] });
  const { rolloutId = '', groupId = '' } = made.rollouts[0] ?? {};
  return { runId, groupId, rolloutId };
}

async function claim(runId: string, workerId: string) {
  const { claims } = await scene.client.rollouts.claimRollouts({ runId, workerId, maxRollouts: 1 });
  return claims[0]?.trajectory?.id ?? '';
}

const append = (trajectoryId: string, stepNumber: bigint, reward: number) =>
  scene.client.trajectories.appendStep({
    trajectoryId,
    step: { stepNumber, reward, actions: [{ type: 'say', content: { text: `turn ${stepNumber}` } }] },
  });

describe('a group and its rollouts', () => {
  it('follow turns, attempts and verdicts, and a lost lease stays on the line of its worker', async () => {
    const { runId, groupId, rolloutId } = await createRollout('followed');
    const [group, rollout] = [await openPage(scene.context), await openPage(scene.context)];
    await show(group.page, `${scene.url}/runs/${runId}/groups/${groupId}`);
    await show(rollout.page, `${scene.url}/rollouts/${rolloutId}`);
    const first = await claim(runId, 'worker-a');
    await append(first, 0n, 1);
    await waitForText(group.page, 'turn 0');
    await waitForText(rollout.page, 'reward 1');
    await scene.client.rollouts.releaseRollout({ rolloutId, attempt: 1, message: 'preempted', refundAttempt: true });
    await waitForText(rollout.page, 'preempted');
    const second = await claim(runId, 'worker-b');
    await append(second, 0n, 5);
    await waitForText(group.page, 'attempt 2');
    await scene.client.rollouts.completeRollout({ rolloutId, attempt: 2, result: { success: true } });
    await waitForText(group.page, 'success');
    await waitForText(rollout.page, 'success');
    await show(group.page, `${scene.url}/runs/${runId}`);
    await expect.poll(() => textsOf(group.page, '.timeline-name')).toEqual(['Stages', 'worker-a', 'worker-b']);
    await group.page.locator('[aria-labelledby=timeline] button').click();
    await waitForText(group.page, 'preempted', '[aria-labelledby=timeline] tbody');
    expect([...group.faults, ...rollout.faults]).toEqual([]);
    await group.page.close();
    await rollout.page.close();
  });
});

describe('trajectories side by side', () => {
  it('follow the steps of each', async () => {
    const { trajectories } = scene.client;
    const id = (await trajectories.createTrajectory({ name: 'one side' })).trajectory?.id ?? '';
    await append(id, 0n, 1);
    const other =
      (await trajectories.branchTrajectory({ trajectoryId: id, stepNumber: 0n, name: 'other side' })).trajectory?.id ??
      '';
    const { page, faults } = await openPage(scene.context);
    await show(page, `${scene.url}/compare?ids=${id},${other}`);
    await waitForText(page, 'say turn 0');
    await append(id, 1n, 1);
    await append(other, 1n, 7);
    await waitForText(page, '+6');
    await expect.poll(() => countOf(page, '.columns td a')).toBe(2);
    expect(faults).toEqual([]);
    await page.close();
  });
});

/** Returns by how many pixels the axis of the plot begins or ends beside that of the bars. */
function axisDistance(page: Page): Promise<number> {
  return page.evaluate(() => {
    const boxOf = (selector: string) => (document.querySelector(selector) as Element).getBoundingClientRect();
    const [plot, bars] = [boxOf('.plot-area'), boxOf('.grid-head > :nth-child(2)')];
    // The labels of values stand left of the axis.
    return Math.max(Math.abs(plot.left + 56 - bars.left), Math.abs(plot.right - bars.right));
  });
}

async function expectOneAxis(page: Page): Promise<void> {
  for (const width of [900, 1500]) {
    await page.setViewport({ width, height: 900 });
    await expect.poll(() => axisDistance(page)).toBeLessThan(1);
  }
}

describe('tags', () => {
  it('are a column of the tree while there are some, lead to their steps, and are found by the filter', async () => {
    const { trajectories } = scene.client;
    const trajectoryId = (await trajectories.createTrajectory({ name: 'tagged root' })).trajectory?.id ?? '';
    for (const step of [0n, 1n, 2n]) await append(trajectoryId, step, 1);
    await trajectories.branchTrajectory({ trajectoryId, stepNumber: 1n, name: 'untagged' });
    const { page, faults } = await openPage(scene.context);
    await show(page, `${scene.url}/trees/${trajectoryId}`);
    await page.waitForSelector(has(ROWS, 'untagged'));
    expect(await countOf(page, '.tag-cell')).toBe(0);
    await expectOneAxis(page);
    await trajectories.setTag({ trajectoryId, name: 'good', stepNumber: 0n });
    await trajectories.setTag({ trajectoryId, name: 'best', stepNumber: 1n });
    await waitForText(page, /best\s*\+1/, `${ROWS} .tag-cell`);
    await expectOneAxis(page);
    await page.locator(has('.tag', 'best')).click();
    await expect.poll(() => new URL(page.url()).searchParams.get('step')).toBe('1');
    await fill(page, '.title-bar input[type=search]', 'best');
    await expect.poll(() => textsOf(page, `${ROWS} .name`)).toEqual(['tagged root']);
    await trajectories.deleteTag({ trajectoryId, name: 'good' });
    await trajectories.deleteTag({ trajectoryId, name: 'best' });
    await fill(page, '.title-bar input[type=search]', '');
    await expect.poll(() => countOf(page, '.tag-cell')).toBe(0);
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('the values of the branching plot', () => {
  it('are a table, with the values of the owners at shared steps', async () => {
    const { trajectories } = scene.client;
    const trajectoryId = (await trajectories.createTrajectory({ name: 'tabled' })).trajectory?.id ?? '';
    for (const step of [0n, 1n, 2n]) await append(trajectoryId, step, 2);
    const branch = (await trajectories.branchTrajectory({ trajectoryId, stepNumber: 1n, name: 'tabled branch' }))
      .trajectory;
    await append(branch?.id ?? '', 2n, 10);
    const { page, faults } = await openPage(scene.context);
    await show(page, `${scene.url}/trees/${trajectoryId}`);
    await page.locator(is('.plot-head button', 'Table')).click();
    await expect
      .poll(() => textsOf(page, '.plot-table tbody tr'))
      .toEqual(['tabled\t2\t4\t6', 'tabled branch\t2\t4\t14']);
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('a tree of runs', () => {
  it('is the tree of their main trajectories, named after the runs, which the rows lead to', async () => {
    const { runs } = scene.client;
    const { run } = await runs.createRun({ name: 'a first run', mainTrajectory: {} });
    await append(run?.mainTrajectoryId ?? '', 0n, 1);
    await runs.branchRun({ runId: run?.id ?? '', stepNumber: 0n, name: 'a branched run' });
    const { page, faults } = await openPage(scene.context);
    await show(page, `${scene.url}/trees/${run?.id}`);
    await expect.poll(() => textsOf(page, `${ROWS} .name`)).toEqual(['a first run', 'a branched run']);
    await expect.poll(() => new URL(page.url()).pathname).toBe(`/trees/${run?.mainTrajectoryId}`);
    await page.locator(has(ROWS, 'a branched run')).click();
    await page.locator(has('.trajectory-facts a', 'a branched run')).click();
    await waitForText(page, 'a branched run', 'h1');
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('changes', () => {
  it('are announced politely, and not what was there at first', async () => {
    const { trajectories } = scene.client;
    const trajectoryId = (await trajectories.createTrajectory({ name: 'announced' })).trajectory?.id ?? '';
    await append(trajectoryId, 0n, 1);
    const { page, faults } = await openPage(scene.context);
    await show(page, `${scene.url}/trees/${trajectoryId}`);
    await page.waitForSelector(ROWS);
    const announced = '.title-bar p[role=status]';
    expect(await textOf(page, announced)).toBe('');
    await append(trajectoryId, 1n, 1);
    await waitForText(page, '1 trajectory, 2 steps', announced);
    expect(await attributeOf(page, announced, 'class')).toBe('only-read');
    expect(faults).toEqual([]);
    await page.close();
  });
});
