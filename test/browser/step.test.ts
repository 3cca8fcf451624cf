/** The step view: contents, marks, tokens, and states against those of another branch. */
import type { Page } from 'puppeteer-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { openPageScene, type PageScene } from './page_scene.ts';
import {
  accessibilityFaults,
  choose,
  countOf,
  has,
  openPage,
  takeScreenshot,
  textOf,
  textsOf,
  waitForText,
} from './views.ts';

let scene: PageScene;
beforeAll(async () => {
  scene = await openPageScene();
});
afterAll(() => scene?.close());

/** A PNG of one pixel. */
const PIXEL = Buffer.from(
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==',
  'base64',
);

function stateOf(value: object): Buffer {
  return Buffer.from(JSON.stringify(value));
}

async function show(page: Page, view: string): Promise<void> {
  await page.goto(scene.url + view);
  await page.waitForSelector('.step-body');
}

describe('states', () => {
  it('are compared with the checkpoint before, or with another branch, as the address says', async () => {
    const { trajectories } = scene.client;
    const { trajectory } = await trajectories.createTrajectory({ name: 'trunk' });
    const trajectoryId = trajectory?.id ?? '';
    const words = 'The quick brown fox jumps over the lazy dog, and nobody minds that at all.';
    const put = (id: string, stepNumber: bigint, state: object) =>
      trajectories.appendStep({
        trajectoryId: id,
        step: { stepNumber, states: [{ data: stateOf(state), mediaType: 'application/json' }] },
      });
    await put(trajectoryId, 0n, { x: 0, note: words });
    await put(trajectoryId, 1n, { x: 1, note: words });
    const made = await trajectories.branchTrajectory({ trajectoryId, stepNumber: 0n, name: 'branch' });
    const branchId = made.trajectory?.id ?? '';
    await put(branchId, 1n, { x: 5, note: words.replace('lazy', 'sleepy'), extra: '<i>' });
    const { page, faults } = await openPage(scene.context);
    await show(page, `/trees/${trajectoryId}?at=${branchId}&step=1`);
    await waitForText(page, '3 changes since step 0');
    await choose(page, `${has('label', 'Compare states with')} select`, 'trunk');
    await waitForText(page, '3 changes from trunk, step 1');
    const row = (path: string) => has('.changes tr', path);
    expect(await textOf(page, row('/x'))).toMatch(/\/x\s+1\s+5/);
    expect(await textOf(page, `${row('/note')} del`)).toBe('lazy');
    expect(await textOf(page, `${row('/note')} ins`)).toBe('sleepy');
    expect(await textOf(page, `${row('/extra')} ins`)).toBe('"<i>"');
    expect(await accessibilityFaults(page)).toEqual([]);
    await takeScreenshot(page, 'step-against-light-1500');
    await page.reload();
    await waitForText(page, '3 changes from trunk, step 1');
    await choose(page, `${has('label', 'Compare states with')} select`, 'the checkpoint before');
    await waitForText(page, '3 changes since step 0');
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('a step', () => {
  it('shows actions with their answers, clicks on what was seen, and tokens by more than their colour', async () => {
    const { trajectories } = scene.client;
    const { trajectory } = await trajectories.createTrajectory({ name: 'computer use' });
    const trajectoryId = trajectory?.id ?? '';
    const image = { content: { data: PIXEL, mediaType: 'image/png' } };
    await trajectories.appendStep({ trajectoryId, step: { stepNumber: 0n, observations: [image] } });
    const step = {
      stepNumber: 1n,
      actions: [
        { type: 'tool', name: 'first', callId: 'a', content: { json: '{"x": 0.5, "y": 0.5}' } },
        { type: 'tool', name: 'second', callId: 'b', content: { json: '{"path": [[0, 0], [1, 1]]}' } },
        { type: 'text', content: { text: 'sure perhaps' }, tokenIds: [1, 2], logprobs: [-0.01, -3] },
      ],
      observations: [
        { callId: 'b', content: { text: 'answers b' } },
        { callId: 'a', content: { text: 'answers a' } },
        { content: { text: 'answers nobody' } },
      ],
    };
    await trajectories.appendStep({ trajectoryId, step });
    const { page, faults } = await openPage(scene.context);
    await show(page, `/trees/${trajectoryId}?step=1`);
    await expect.poll(() => countOf(page, '.image svg')).toBe(2);
    const parts = await textsOf(page, '.step-body > section');
    expect(parts[0]).toMatch(/first.*answers a/s);
    expect(parts[1]).toMatch(/second.*answers b/s);
    expect(parts[3]).toContain('answers nobody');
    const marks = await page.$$eval('.image svg', (all) => all.map((each) => each.getAttribute('aria-label')));
    expect(marks).toEqual(['the action, at 0.5, 0.5', 'the action, at 0, 0 to 1, 1']);
    expect(await textsOf(page, '.tokens .unlikely')).toEqual([expect.stringContaining('perhaps')]);
    expect(await accessibilityFaults(page)).toEqual([]);
    await takeScreenshot(page, 'step-content-light-1500');
    expect(faults).toEqual([]);
    await page.close();
  });
});
