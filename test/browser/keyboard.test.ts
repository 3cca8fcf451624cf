/** The page without a pointer. */
import type { Page } from 'puppeteer-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { openPageScene, type PageScene } from './page_scene.ts';
import { countOf, has, inputOf, is, named, openPage, waitForText } from './views.ts';

let scene: PageScene;
beforeAll(async () => {
  scene = await openPageScene();
});
afterAll(() => scene?.close());

/** Presses Tab until an element has the focus that matches a selector, and has this text if one is given. */
async function tabTo(page: Page, selector: string, text?: string): Promise<void> {
  await page.waitForSelector(text === undefined ? selector : is(selector, text));
  const isThere = () =>
    page.evaluate(
      (selector, text) => {
        const focused = document.activeElement;
        return focused?.matches(selector) === true && (text ?? focused.textContent) === focused.textContent;
      },
      selector,
      text,
    );
  for (let presses = 0; presses < 80; presses += 1) {
    await page.keyboard.press('Tab');
    if (await isThere()) return;
  }
  throw new Error(`Tab does not reach ${selector} ${text ?? ''}`);
}

/** A trajectory of four steps with states, and two branches of it after step 1. */
async function plantTree(): Promise<{ readonly trunk: string; readonly twig: string }> {
  const { trajectories } = scene.client;
  const append = async (trajectoryId: string, from: number, weight: number) => {
    for (let number = from; number < 4; number += 1) {
      const data = Buffer.from(JSON.stringify({ x: number * weight }));
      const states = [{ name: 'env', mediaType: 'application/json', data }];
      const step = {
        stepNumber: BigInt(number),
        reward: weight,
        actions: [{ name: `act ${number * weight}` }],
        states,
      };
      await trajectories.appendStep({ trajectoryId, step });
    }
  };
  const trunk = (await trajectories.createTrajectory({ name: 'trunk' })).trajectory?.id ?? '';
  await append(trunk, 0, 1);
  const ids: string[] = [];
  for (const [name, weight] of [
    ['twig', 5],
    ['leaf', 7],
  ] as const) {
    const made = await trajectories.branchTrajectory({ trajectoryId: trunk, stepNumber: 1n, name });
    ids.push(made.trajectory?.id ?? '');
    await append(ids.at(-1) ?? '', 2, weight);
  }
  return { trunk, twig: ids[0] ?? '' };
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
    await tabTo(page, 'button', 'Cancel');
    await page.keyboard.press('Enter');
    await page.waitForSelector('dialog.operation[open] :is(input, textarea):focus');
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
    await page.waitForSelector('input:focus');
    await page.keyboard.type('keys');
    await page.waitForSelector(has('.list tbody th a', 'by keys'));
    expect(faults).toEqual([]);
    await page.close();
  });

  it('walks the steps of a tree and compares their states, and a reload shows the same', async () => {
    const { trunk } = await plantTree();
    const { page, faults } = await openPage(scene.context);
    await page.goto(`${scene.url}/trees/${trunk}`);
    await waitForText(page, '1 change since step 2');
    await tabTo(page, '[role=treegrid]');
    await page.keyboard.press('p');
    await waitForText(page, '1 change since step 1');
    await page.keyboard.press('n');
    await waitForText(page, '1 change since step 2');
    await tabTo(page, '.stepper input[type=number]');
    await page.keyboard.press('ArrowDown');
    await waitForText(page, '1 change since step 1');
    await tabTo(page, '.against select');
    await page.keyboard.press('ArrowDown');
    await waitForText(page, /1 change from (twig|leaf), step 2/);
    await tabTo(page, '.step-body a', 'Download');
    await page.reload();
    await waitForText(page, /1 change from (twig|leaf), step 2/);
    await expect.poll(() => inputOf(page, '.stepper input[type=number]')).toBe('2');
    expect(faults).toEqual([]);
    await page.close();
  });

  it('compares trajectories, adds and removes one, reads earlier steps, and opens one of them', async () => {
    const { trunk, twig } = await plantTree();
    const { page, faults } = await openPage(scene.context);
    await page.goto(`${scene.url}/compare?ids=${trunk},${twig}`);
    await waitForText(page, 'first difference');
    await tabTo(page, named('add a trajectory'));
    await page.keyboard.press('ArrowDown');
    await page.waitForSelector(named('remove leaf'));
    await tabTo(page, named('remove leaf'));
    await page.keyboard.press('Enter');
    await page.waitForSelector(named('remove leaf'), { hidden: true });
    await tabTo(page, 'button', 'Earlier steps');
    await page.keyboard.press('Enter');
    await waitForText(page, 'act 1');
    await tabTo(page, '.columns a', 'act 1');
    await page.keyboard.press('Enter');
    await expect.poll(() => page.url()).toBe(`${scene.url}/trees/${trunk}?at=${trunk}&step=1`);
    expect(faults).toEqual([]);
    await page.close();
  });
});
