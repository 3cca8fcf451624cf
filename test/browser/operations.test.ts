/** Operations of the page. */
import { execFile } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import process from 'node:process';
import { promisify } from 'node:util';
import type { Page } from 'puppeteer-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { connectClient } from '../../src/client/index.ts';
import { startTestServer } from '../support/test-server.ts';
import { openPageScene, type PageScene } from './page_scene.ts';
import {
  accessibilityFaults,
  addressOf,
  countOf,
  fill,
  has,
  inputOf,
  is,
  openPage,
  show,
  takeScreenshot,
  textOf,
  waitForText,
} from './views.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
const run = promisify(execFile);

let scene: PageScene;
beforeAll(async () => {
  scene = await openPageScene();
});
afterAll(() => scene?.close());

/** Creates a trajectory of steps 0 to 3. */
async function createSteps(name: string): Promise<string> {
  const { trajectory } = await scene.client.trajectories.createTrajectory({ name, labels: { lr: '0.1' } });
  const trajectoryId = trajectory?.id ?? '';
  for (let stepNumber = 0n; stepNumber < 4n; stepNumber += 1n) {
    await scene.client.trajectories.appendStep({ trajectoryId, step: { stepNumber, reward: 1 } });
  }
  return trajectoryId;
}

const operation = (title: string) => has('.operations > button', title);
const choose = (page: Page, title: string) => page.locator(operation(title)).click();
const confirm = (page: Page) => page.locator('dialog.operation .primary').click();
/** Confirms an operation, and waits until it is done: the dialog is in front of everything else until then. */
async function perform(page: Page): Promise<void> {
  await confirm(page);
  await page.waitForSelector('dialog.operation', { hidden: true });
}
/** The field of a dialog with this label. */
const field = (label: string) => `${is('dialog.operation label', label)} ~ :is(input, select, textarea)`;

async function startedRun(name: string): Promise<string> {
  const { run: created } = await scene.client.runs.createRun({ name });
  const runId = created?.id ?? '';
  await scene.client.runs.startRun({ runId });
  return runId;
}

describe('operations of a trajectory', () => {
  it('branch at the step that is shown, and show how to continue the branch in code that runs', async () => {
    const trajectoryId = await createSteps('trunk');
    const { page, faults } = await openPage(scene.context);
    await show(page, `${scene.url}/trees/${trajectoryId}?step=2`);
    await choose(page, 'Branch here');
    await fill(page, 'dialog.operation input', 'twig');
    expect(await accessibilityFaults(page)).toEqual([]);
    await takeScreenshot(page, 'operation-light-1500');
    await confirm(page);
    await waitForText(page, 'The branch is created');
    const code = async (language: string, part: string) => {
      await page.locator(has('.code-view label', language)).click();
      return textOf(page, has('.code-view pre', part));
    };
    const typeScript = await code('TypeScript', 'import {');
    const shell = (await code('CLI', 'curl')).split('\n').find((line) => line.startsWith('curl')) ?? '';
    await page.locator(has('dialog.operation button, dialog.operation a', 'Show it')).click();
    await page.waitForSelector(has('[role=row]', 'twig'));
    const branchId = new URL(await addressOf(page)).pathname.split('/')[2] ?? '';
    const folder = await mkdtemp(path.join(ROOT, 'test/browser/.code-'));
    const file = path.join(folder, 'continue.ts');
    await writeFile(file, typeScript.replace('anabranch/client', path.join(ROOT, 'src/client/index.ts')));
    const end = async () =>
      (await scene.client.trajectories.getTrajectory({ trajectoryId: branchId })).trajectory?.nextStepNumber;
    await run('bash', ['-c', shell]);
    expect(await end()).toBe(4n);
    // The writer continues at the end, wherever that is.
    await run(process.execPath, [file]).finally(() => rm(folder, { recursive: true }));
    expect(await end()).toBe(5n);
    expect(faults).toEqual([]);
    await page.close();
  });

  it('tag, rename and label, and keep the labels that are not changed', async () => {
    const trajectoryId = await createSteps('nameless');
    const { page, faults } = await openPage(scene.context);
    await show(page, `${scene.url}/trees/${trajectoryId}?step=1`);
    await choose(page, 'Tag');
    await fill(page, 'dialog.operation input', 'best');
    await page.keyboard.press('Enter');
    await page.waitForSelector('dialog.operation', { hidden: true });
    await choose(page, 'Rename');
    await expect.poll(() => inputOf(page, 'dialog.operation input')).toBe('nameless');
    await fill(page, 'dialog.operation input', 'named');
    await perform(page);
    await page.waitForSelector(has('h1', 'named'));
    await choose(page, 'Label');
    await expect.poll(() => inputOf(page, 'dialog.operation textarea')).toBe('lr=0.1');
    await fill(page, 'dialog.operation textarea', 'lr=0.1\nseed');
    await confirm(page);
    await waitForText(page, 'A label must be NAME=VALUE, got seed', 'dialog.operation .problem');
    await fill(page, 'dialog.operation textarea', 'lr=0.1\nseed=7');
    await perform(page);
    const { trajectory } = await scene.client.trajectories.getTrajectory({ trajectoryId });
    expect([trajectory?.name, trajectory?.labels]).toEqual(['named', { lr: '0.1', seed: '7' }]);
    const { tags } = await scene.client.trajectories.listTags({ trajectoryId, name: 'best' });
    expect(tags.map(({ stepNumber }) => stepNumber)).toEqual([1n]);
    expect(faults).toEqual([]);
    await page.close();
  });

  it('show the message of the server if it refuses, and offer the same call as code', async () => {
    const trajectoryId = await createSteps('refused');
    const { page, faults } = await openPage(scene.context);
    await show(page, `${scene.url}/trees/${trajectoryId}?step=1`);
    await choose(page, 'Tag');
    await fill(page, 'dialog.operation input', '1 <b>bad</b>');
    await confirm(page);
    const refusal = () => textOf(page, 'dialog.operation .problem');
    const message = await scene.client.trajectories
      .setTag({ trajectoryId, stepNumber: 1n, name: '1 <b>bad</b>' })
      .catch((error: { rawMessage: string }) => error.rawMessage);
    await expect.poll(refusal).toBe(message);
    await page.locator(has('dialog.operation summary', 'Copy as code')).click();
    await scene.context.overridePermissions(scene.url, ['clipboard-read', 'clipboard-sanitized-write']);
    await page.locator('.code-view button').click();
    await waitForText(page, /^Copied$/m);
    expect(await page.evaluate('navigator.clipboard.readText()')).toContain('await client.trajectories.setTag({');
    await page.keyboard.press('Escape');
    await expect.poll(() => countOf(page, 'dialog.operation')).toBe(0);
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('operations of a run', () => {
  it('pause, resume and cancel, each after one confirmation, and follow the status', async () => {
    const runId = await startedRun('steered');
    const { page, faults } = await openPage(scene.context);
    await show(page, `${scene.url}/runs/${runId}`);
    const status = async () => (await scene.client.runs.getRun({ runId })).run?.status;
    await choose(page, 'Pause');
    await page.waitForSelector('dialog.operation[open]');
    expect(await status()).toBe(Status.RUNNING);
    await perform(page);
    await page.waitForSelector(operation('Resume'));
    expect(await status()).toBe(Status.PAUSED);
    await choose(page, 'Resume');
    await perform(page);
    await page.waitForSelector(operation('Pause'));
    expect(await status()).toBe(Status.RUNNING);
    await choose(page, 'Cancel');
    await fill(page, field('Message'), 'enough');
    await page.locator('::-p-text(Cancel its rollouts, too)').click();
    await perform(page);
    await page.waitForSelector(operation('Cancel'), { hidden: true });
    await waitForText(page, 'enough');
    expect(await status()).toBe(Status.CANCELLED);
    expect(faults).toEqual([]);
    await page.close();
  });

  it('stay as they were chosen while the run changes, so that the server decides', async () => {
    const runId = await startedRun('raced');
    const { page, faults } = await openPage(scene.context);
    await show(page, `${scene.url}/runs/${runId}`);
    await choose(page, 'Pause');
    await scene.client.runs.completeRun({ runId });
    await page.waitForSelector(operation('Pause'), { hidden: true });
    await confirm(page);
    await page.waitForSelector('dialog.operation .problem');
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('operations of a rollout', () => {
  it('cancel, retry and override, and the log of overrides shows what was decided', async () => {
    const runId = await startedRun('rolled');
    const { stage } = await scene.client.runs.getOrCreateStage({ runId, kind: StageKind.TRAIN_STEP, number: 1n });
    const stageId = stage?.id ?? '';
    await scene.client.runs.startStage({ stageId });
    const rollouts = [{ groupNumber: 0n, number: 0n }];
    const created = await scene.client.rollouts.createRollouts({ stageId, rollouts });
    const rolloutId = created.rollouts[0]?.rolloutId ?? '';
    const { page, faults } = await openPage(scene.context);
    await show(page, `${scene.url}/rollouts/${rolloutId}`);
    await choose(page, 'Cancel');
    await perform(page);
    await choose(page, 'Retry');
    await perform(page);
    await page.waitForSelector(operation('Cancel'));
    await scene.client.rollouts.claimRollouts({ runId, workerId: 'w', maxRollouts: 1 });
    await page.reload();
    await choose(page, 'Override verdict');
    await fill(page, field('Verdict'), 'no success');
    await fill(page, field('Reason'), 'it cheated');
    await perform(page);
    await waitForText(page, /no success: it cheated page, attempt 1/);
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('a page that only reads', () => {
  it('offers no operation', async () => {
    await using server = await startTestServer({ flags: { page: 'read' } });
    const client = connectClient({ address: server.url });
    const { trajectory } = await client.trajectories.createTrajectory({ name: 'read' });
    await client.trajectories.appendStep({ trajectoryId: trajectory?.id ?? '', step: { stepNumber: 0n } });
    const { page, faults } = await openPage(scene.context);
    await page.goto(`${server.url}/trees/${trajectory?.id}`);
    await page.waitForSelector('.step-body');
    expect(await countOf(page, '.operations')).toBe(0);
    expect(faults).toEqual([]);
    await page.close();
    client.close();
  });
});
