/** Bad input: readable in every view, freezes nothing, and logs no error. */
import type { Page } from 'puppeteer-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { openPageScene, type PageScene } from './page_scene.ts';
import { serveTree, uuidOf } from './synthetic_tree.ts';
import { attributeOf, countOf, fill, has, inputOf, openPage, ROWS, show, waitForText } from './views.ts';

let scene: PageScene;
beforeAll(async () => {
  scene = await openPageScene();
});
afterAll(() => scene?.close());

const MARKUP = '<img src=x onerror=alert(1)><script>alert(2)</script>\u202egnp.exe';
const SHOWN = '<img src=x onerror=alert(1)><script>alert(2)</script>\ufffdgnp.exe';

/** Nothing of the data became an element. */
async function expectOnlyText(page: Page): Promise<void> {
  expect(await countOf(page, 'main script, main img[src=x], main a[href^=javascript], main b')).toBe(0);
}

/** Returns how long the page took to answer, while it had to draw something else. */
async function expectAlive(page: Page): Promise<void> {
  expect(await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => resolve('drawn'))))).toBe(
    'drawn',
  );
}

async function createTree(labels: Readonly<Record<string, string>> = {}): Promise<string> {
  const { trajectory } = await scene.client.trajectories.createTrajectory({ name: MARKUP, labels });
  return trajectory?.id ?? '';
}

describe('markup in names, labels, texts, types and messages', () => {
  it('is text in the lists, a run, a group, a rollout, a comparison, a search and a dialog', async () => {
    const { runs, rollouts, trajectories } = scene.client;
    const labels = { '<b>name</b>': MARKUP };
    const { run } = await runs.createRun({ name: MARKUP, labels, configJson: JSON.stringify({ [MARKUP]: MARKUP }) });
    const runId = run?.id ?? '';
    await runs.startRun({ runId });
    await runs.updateRun({
      runId,
      statusMessage: MARKUP,
      phase: '<b>x',
      updateMask: { paths: ['status_message', 'phase'] },
    });
    await runs.logMetrics({ runId, points: [{ key: MARKUP, metricStep: 0n, value: 1 }] });
    const { stage } = await runs.getOrCreateStage({ runId, kind: StageKind.TRAIN_STEP, number: 1n });
    const stageId = stage?.id ?? '';
    await runs.startStage({ stageId });
    const wanted = [{ groupNumber: 0n, number: 0n, labels, inputJson: JSON.stringify(MARKUP) }];
    const made = await rollouts.createRollouts({ stageId, rollouts: wanted });
    const { rolloutId = '', groupId = '' } = made.rollouts[0] ?? {};
    await rollouts.claimRollouts({ runId, workerId: '<b>worker</b>', maxRollouts: 1 });
    await rollouts.overrideValidation({ rolloutId, success: false, reason: MARKUP, actor: MARKUP.slice(0, 60) });
    const treeId = await createTree(labels);
    const step = {
      stepNumber: 0n,
      actions: [{ type: '<b>', name: '<b>', content: { text: MARKUP } }],
      infoJson: JSON.stringify({ [MARKUP]: 1 }),
    };
    await trajectories.appendStep({ trajectoryId: treeId, step });
    const made2 = await trajectories.branchTrajectory({ trajectoryId: treeId, stepNumber: 0n, name: MARKUP });
    const views = {
      '/': '.list tbody a',
      [`/runs/${runId}`]: has('.metric-place', '<script>'),
      [`/runs/${runId}/groups/${groupId}`]: '.sibling',
      [`/rollouts/${rolloutId}`]: '::-p-text(no success:)',
      [`/trees/${treeId}`]: '.step-body',
      [`/compare?ids=${treeId},${made2.trajectory?.id}`]: '.columns a',
      [`/search?q=${encodeURIComponent('<script>')}`]: '.hits mark',
    };
    const { page, faults } = await openPage(scene.context);
    for (const [view, last] of Object.entries(views)) {
      await show(page, scene.url + view);
      await page.waitForSelector(last);
      await expectOnlyText(page);
    }
    await show(page, `${scene.url}/trees/${treeId}`);
    await page.locator(has('.operations > button', 'Branch here')).click();
    await waitForText(page, `${SHOWN.slice(0, 20)}`, 'dialog.operation h2');
    await page.locator(has('dialog.operation summary', 'Copy as code')).click();
    await expectOnlyText(page);
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('contents', () => {
  it('of 1 MiB in a line, JSON 100 deep, lone surrogates and wrong clocks are readable', async () => {
    const trajectoryId = await createTree();
    const later = { seconds: 4_102_444_800n, nanos: 0 };
    const deep = `${'['.repeat(90)}"\\ud800"${']'.repeat(90)}`;
    const step = {
      stepNumber: 0n,
      reward: Number.NEGATIVE_INFINITY,
      startTime: later,
      endTime: { seconds: 1n, nanos: 0 },
      observations: [{ content: { text: 'x'.repeat(500_000) } }, { content: { json: deep } }],
      actions: [{ content: { text: 'y'.repeat(500_000) } }],
    };
    await scene.client.trajectories.appendStep({ trajectoryId, step });
    const { page, faults } = await openPage(scene.context);
    await show(page, `${scene.url}/trees/${trajectoryId}?step=0`);
    await waitForText(page, '−∞');
    await page.locator(has('button', 'Show all 1 lines')).click();
    await waitForText(page, 'Show less');
    await expectAlive(page);
    await waitForText(page, /^0 s$/m);
    await show(page, scene.url);
    await page.waitForSelector(`a[href="/trees/${trajectoryId}"]`);
    expect(faults).toEqual([]);
    await page.close();
  });

  it('of an image of 20,000 px fit the view', async () => {
    const { page, faults } = await openPage(scene.context);
    const trajectoryId = await createTree();
    await page.goto(scene.url);
    const base64 = await page.evaluate(() => {
      const canvas = Object.assign(document.createElement('canvas'), { width: 20_000, height: 4 });
      canvas.getContext('2d')?.fillRect(0, 0, 20_000, 4);
      return canvas.toDataURL('image/png').split(',')[1] ?? '';
    });
    const content = { data: Buffer.from(base64, 'base64'), mediaType: 'image/png' };
    await scene.client.trajectories.appendStep({ trajectoryId, step: { stepNumber: 0n, observations: [{ content }] } });
    await show(page, `${scene.url}/trees/${trajectoryId}`);
    const width = (property: 'naturalWidth' | 'clientWidth') =>
      page.$eval('.image img', (image, property) => (image as HTMLImageElement)[property], property);
    await expect.poll(() => width('naturalWidth')).toBe(20_000);
    await expect.poll(() => width('clientWidth')).toBeLessThan(500);
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('many', () => {
  it('metric keys are one plot each, found by typing', async () => {
    const { run } = await scene.client.runs.createRun({ name: 'many keys' });
    const runId = run?.id ?? '';
    for (let from = 0; from < 3000; from += 500) {
      const points = Array.from({ length: 500 }, (_, at) => ({ key: `key/${from + at}`, metricStep: 0n, value: at }));
      await scene.client.runs.logMetrics({ runId, points });
    }
    const { page, faults } = await openPage(scene.context);
    await show(page, `${scene.url}/runs/${runId}`);
    await expect.poll(() => countOf(page, '.metric-place')).toBe(3000);
    await fill(page, 'section input[type=search]', 'key/2999');
    await page.waitForSelector(has('.metric', 'key/2999'));
    expect(faults).toEqual([]);
    await page.close();
  });

  it('branches of one trajectory (20,000) are rows of which the visible ones exist', async () => {
    const root = { id: uuidOf(0), name: 'root', nextStepNumber: 100n, status: Status.RUNNING };
    const branches = Array.from({ length: 20_000 }, (_, at) => ({
      trajectory: {
        id: uuidOf(at + 1),
        parentId: uuidOf(0),
        branchPoint: BigInt(at % 90),
        name: `branch ${at}`,
        nextStepNumber: 100n,
        rewardSum: at % 7 === 0 ? Number.NaN : at,
        status: Status.COMPLETED,
      },
      gain: at % 5 === 0 ? Number.POSITIVE_INFINITY : at,
    }));
    const { page, faults } = await openPage(scene.context);
    await serveTree(page, [{ trajectory: root }, ...branches]);
    await show(page, `${scene.url}/trees/${uuidOf(0)}`);
    await waitForText(page, '20,001 trajectories');
    await page.focus('[role=treegrid]');
    await page.keyboard.press('End');
    await page.waitForSelector('[aria-selected=true]');
    await expect.poll(() => attributeOf(page, '[role=treegrid]', 'aria-rowcount')).toBe('20002');
    await expect.poll(() => countOf(page, '[role=row]')).toBeLessThan(100);
    await fill(page, 'input[type=search]', 'branch 19999');
    await expect.poll(() => countOf(page, ROWS)).toBe(2);
    expect(faults).toEqual([]);
    await page.close();
  });

  it('branches of branches (5,000 deep) are rows, and the keys go through them', async () => {
    const nodes = Array.from({ length: 5000 }, (_, at) => ({
      trajectory: {
        id: uuidOf(at),
        name: `depth ${at}`,
        nextStepNumber: BigInt(at + 1),
        status: Status.RUNNING,
        ...(at === 0 ? {} : { parentId: uuidOf(at - 1), branchPoint: BigInt(at - 1) }),
      },
    }));
    const { page, faults } = await openPage(scene.context);
    await serveTree(page, nodes);
    await show(page, `${scene.url}/trees/${uuidOf(0)}`);
    await waitForText(page, '5,000 trajectories');
    await page.focus('[role=treegrid]');
    await page.keyboard.press('End');
    await page.waitForSelector(has('[aria-selected=true]', 'depth 4999'));
    await page.keyboard.press('ArrowLeft');
    await page.waitForSelector(has('[aria-selected=true]', 'depth 4998'));
    expect(faults).toEqual([]);
    await page.close();
  });

  it('steps (10 million, or one) are a scale that can be walked', async () => {
    for (const steps of [10_000_000, 1]) {
      const { page, faults } = await openPage(scene.context);
      const id = uuidOf(7);
      await serveTree(page, [
        { trajectory: { id, name: 'long', nextStepNumber: BigInt(steps), status: Status.COMPLETED } },
      ]);
      await show(page, `${scene.url}/trees/${id}`);
      await expect.poll(() => inputOf(page, '.stepper input[type=number]')).toBe(`${steps - 1}`);
      await page.keyboard.press('p');
      await expect.poll(() => inputOf(page, '.stepper input[type=number]')).toBe(`${Math.max(0, steps - 2)}`);
      await expectAlive(page);
      expect(faults).toEqual([]);
      await page.close();
    }
  });
});

describe('addresses', () => {
  it.each([
    '/runs/nonsense/groups/nonsense',
    '/compare?ids=%00,%ff',
    '/compare?tree=0199f3a2-7c11-7d2e-8a4b-0123456789ab&label=a&a=1&b=2',
    '/search?q=x&in=run:0199f3a2-7c11-7d2e-8a4b-0123456789ab',
    '/trees/0199f3a2-7c11-7d2e-8a4b-0123456789ab?step=-1&from=x&value=y:z&against=%f0',
  ])('%s says what is wrong', async (view) => {
    const { page, faults } = await openPage(scene.context);
    await page.goto(scene.url + view);
    await page.waitForSelector('.problem');
    expect(faults).toEqual([]);
    await page.close();
  });

  it('with values that a tree does not have show the tree', async () => {
    const trajectoryId = await createTree();
    await scene.client.trajectories.appendStep({ trajectoryId, step: { stepNumber: 0n } });
    const { page, faults } = await openPage(scene.context);
    await show(
      page,
      `${scene.url}/trees/${trajectoryId}?at=nobody&step=99999999999999&from=9&to=2&value=%3Cb%3E&order=x&closed=,,a`,
    );
    await page.waitForSelector('.step-body');
    await expect.poll(() => inputOf(page, '.stepper input[type=number]')).toBe('0');
    expect(faults).toEqual([]);
    await page.close();
  });
});
