/** The page at 400 % zoom, with forced colours and with reduced motion. */
import type { Page } from 'puppeteer-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { openPageScene, type PageScene } from './page_scene.ts';
import { expectToFit, has, inputOf, is, openPage, ROWS, show, waitForText, waitForWhole } from './views.ts';

let scene: PageScene;
/** Addresses of the views, on data of this file. */
let views: Readonly<Record<'tree' | 'run' | 'rollout' | 'group' | 'compare' | 'home' | 'search', string>>;

beforeAll(async () => {
  scene = await openPageScene();
  const { trajectories, runs, rollouts } = scene.client;
  const name = 'a trajectory with quite a long name, which narrow views must cut or wrap';
  const { trajectory } = await trajectories.createTrajectory({ name, labels: { label: 'value' } });
  const trajectoryId = trajectory?.id ?? '';
  for (const stepNumber of [0n, 1n, 2n]) {
    const actions = [{ type: 'say', content: { text: 'a long line of text '.repeat(20) } }];
    await trajectories.appendStep({ trajectoryId, step: { stepNumber, reward: 1, actions } });
  }
  const branch = await trajectories.branchTrajectory({ trajectoryId, stepNumber: 1n, name: 'better' });
  const branchId = branch.trajectory?.id ?? '';
  await trajectories.appendStep({ trajectoryId: branchId, step: { stepNumber: 2n, reward: 5 } });
  await trajectories.setTag({ trajectoryId: branchId, name: 'chosen', stepNumber: 2n });
  const { run } = await runs.createRun({ name: `run of ${name}` });
  const runId = run?.id ?? '';
  await runs.startRun({ runId });
  await runs.logMetrics({ runId, points: [0n, 1n, 2n].map((metricStep) => ({ key: 'loss', metricStep, value: 3 })) });
  const { stage } = await runs.getOrCreateStage({ runId, kind: StageKind.TRAIN_STEP, number: 1n });
  const stageId = stage?.id ?? '';
  await runs.startStage({ stageId });
  const made = await rollouts.createRollouts({ stageId, rollouts: [{ groupNumber: 0n, number: 0n }] });
  const { rolloutId = '', groupId = '' } = made.rollouts[0] ?? {};
  await rollouts.claimRollouts({ runId, workerId: 'worker', maxRollouts: 1 });
  views = {
    tree: `/trees/${trajectoryId}`,
    run: `/runs/${runId}`,
    rollout: `/rollouts/${rolloutId}`,
    group: `/runs/${runId}/groups/${groupId}`,
    compare: `/compare?ids=${trajectoryId},${branchId}`,
    home: '/',
    search: '/search?q=long',
  };
});
afterAll(() => scene?.close());

async function emulate(page: Page, name: string, value: string): Promise<void> {
  const session = await page.createCDPSession();
  await session.send('Emulation.setEmulatedMedia', { features: [{ name, value }] });
}

/**
 * Returns which of the elements have the colour of the canvas as their background, as forced colours give it to all.
 */
function invisible(page: Page, selector: string): Promise<string[]> {
  return page.$$eval(selector, (elements) => {
    const canvas = getComputedStyle(document.body).backgroundColor;
    const plain = ['rgba(0, 0, 0, 0)', canvas];
    return elements
      .filter((each) => {
        const { backgroundColor, backgroundImage } = getComputedStyle(each);
        return plain.includes(backgroundColor) && backgroundImage === 'none';
      })
      .map((each) => each.outerHTML.slice(0, 120));
  });
}

describe('at 400 % zoom', () => {
  it('every view fits the width, and a step can be reached with what it shows', async () => {
    const { page, faults } = await openPage(scene.context);
    // 1,280 × 1,024 pixels, each four times as large.
    await page.setViewport({ width: 320, height: 256 });
    for (const [name, view] of Object.entries(views)) {
      await show(page, scene.url + view);
      await waitForWhole(page);
      await expectToFit(page, name);
    }
    await show(page, scene.url + views.tree);
    await page.locator(has(ROWS, 'better')).click();
    // What does not fit into the row is shown with the step.
    await waitForText(page, /reward\s+7/, '.trajectory-facts');
    await waitForText(page, /gain\s+\+4/, '.trajectory-facts');
    await page.locator(has('.tag', 'chosen')).click();
    await expect.poll(() => inputOf(page, '.stepper input[type=number]')).toBe('2');
    await waitForText(page, /Reward\s+5/, '.facts');
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('with forced colours', () => {
  it('what colours say stays visible, and the selected row has an outline', async () => {
    const { page, faults } = await openPage(scene.context);
    await emulate(page, 'forced-colors', 'active');
    await show(page, scene.url + views.tree);
    await page.locator(has(ROWS, 'better')).click();
    const selected = `${ROWS}.selected`;
    await waitForText(page, 'better', selected);
    await expect.poll(() => page.$eval(selected, (row) => getComputedStyle(row).outlineStyle)).toBe('solid');
    await page.waitForSelector('.legend .swatch');
    expect(await invisible(page, '.legend .swatch')).toEqual([]);
    await show(page, scene.url + views.run);
    await page.waitForSelector('.timeline .span');
    await page.waitForSelector('.bar > span');
    expect(await invisible(page, '.timeline .span, .bar > span:not(.hollow)')).toEqual([]);
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('with reduced motion', () => {
  it('nothing moves: the page has no animations at all', async () => {
    const { page, faults } = await openPage(scene.context);
    await emulate(page, 'prefers-reduced-motion', 'reduce');
    await show(page, scene.url + views.tree);
    await page.locator(has(ROWS, 'better')).click();
    await page.locator(is('button', 'Table')).click();
    await page.waitForSelector('.plot-table');
    const moving = await page.evaluate(() => {
      const styles = [...document.querySelectorAll('*')].map((each) => getComputedStyle(each));
      const moves = ({ animationName, transitionDuration, scrollBehavior }: CSSStyleDeclaration) =>
        animationName !== 'none' || !/^0s(?:, 0s)*$/.test(transitionDuration) || scrollBehavior === 'smooth';
      return styles.filter(moves).length + document.getAnimations().length;
    });
    expect(moving).toBe(0);
    expect(faults).toEqual([]);
    await page.close();
  });
});
