/** The page without a pointer. */
import type { Page } from 'puppeteer-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { openPageScene, type PageScene } from './page_scene.ts';
import { countOf, has, openPage, waitForText } from './views.ts';

let scene: PageScene;
beforeAll(async () => {
  scene = await openPageScene();
});
afterAll(() => scene?.close());

/** Presses Tab until an element with this text has the focus. */
async function tabTo(page: Page, text: string): Promise<void> {
  for (let presses = 0; presses < 60; presses += 1) {
    await page.keyboard.press('Tab');
    if ((await page.evaluate(() => document.activeElement?.textContent)) === text) return;
  }
  throw new Error(`Tab reaches no element with the text ${text}`);
}

describe('every view by keyboard alone', () => {
  it('leads from the list over a run and a group to a rollout, and an operation is confirmed on the way', async () => {
    const { runs, rollouts } = scene.client;
    const { run } = await runs.createRun({ name: 'by keys' });
    const runId = run?.id ?? '';
    await runs.startRun({ runId });
    const { stage } = await runs.getOrCreateStage({ runId, kind: StageKind.TRAIN_STEP, number: 1n });
    const stageId = stage?.id ?? '';
    await runs.startStage({ stageId });
    const wanted = [0n, 1n].map((number) => ({ groupNumber: 0n, number }));
    await rollouts.createRollouts({ stageId, rollouts: wanted });
    const { page, faults } = await openPage(scene.context);
    await page.goto(`${scene.url}/?text=by+keys`);
    await waitForText(page, 'by keys');
    await page.keyboard.press('j');
    await page.keyboard.press('Enter');
    await waitForText(page, 'Group 0');
    await page.keyboard.press('j');
    await page.keyboard.press('Enter');
    await waitForText(page, 'Rollout 1');
    await page.keyboard.press('j');
    await page.keyboard.press('j');
    await page.keyboard.press('Enter');
    await page.waitForSelector(has('h1', 'Rollout 1'));
    await tabTo(page, 'Cancel');
    await page.keyboard.press('Enter');
    await page.waitForSelector('dialog.operation[open]');
    await page.keyboard.type('no longer needed');
    await page.keyboard.press('Enter');
    await waitForText(page, 'no longer needed');
    await page.waitForSelector('dialog.operation', { hidden: true });
    await page.keyboard.press('?');
    await waitForText(page, 'Keys', 'dialog[open]');
    // The button of the dialog has the focus.
    await page.keyboard.press('Enter');
    await expect.poll(() => countOf(page, 'dialog[open]')).toBe(0);
    await page.keyboard.press('/');
    await page.keyboard.type('keys');
    await page.waitForSelector(has('.list tbody th a', 'by keys'));
    expect(faults).toEqual([]);
    await page.close();
  });
});
