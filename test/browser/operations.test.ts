/** Operations of the page. */
import { execFile } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import process from 'node:process';
import { promisify } from 'node:util';
import type { Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { connectClient } from '../../src/client/index.ts';
import { createDatabase } from '../support/database.ts';
import { spawnServer } from '../support/spawned-server.ts';
import { openPageScene, type PageScene } from './page_scene.ts';
import { accessibilityFaults, openPage, takeScreenshot } from './views.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
const run = promisify(execFile);

let scene: PageScene;
beforeAll(async () => {
  scene = await openPageScene();
});
afterAll(() => scene?.close());

async function show(page: Page, view: string): Promise<void> {
  await page.goto(scene.url + view);
  await page.waitForSelector('h1');
}

/** Creates a trajectory of steps 0 to 3. */
async function createSteps(name: string): Promise<string> {
  const { trajectory } = await scene.client.trajectories.createTrajectory({ name, labels: { lr: '0.1' } });
  const trajectoryId = trajectory?.id ?? '';
  for (let stepNumber = 0n; stepNumber < 4n; stepNumber += 1n) {
    await scene.client.trajectories.appendStep({ trajectoryId, step: { stepNumber, reward: 1 } });
  }
  return trajectoryId;
}

const operation = (page: Page, title: string) => page.locator('.operations > button', { hasText: title });
const confirm = (page: Page) => page.locator('dialog.operation .primary');

async function startedRun(name: string): Promise<string> {
  const { run: created } = await scene.client.runs.createRun({ name });
  const runId = created?.id ?? '';
  await scene.client.runs.startRun({ runId });
  return runId;
}

describe('operations of a trajectory', () => {
  it('branch at the step that is shown, and show how to continue the branch in code that runs', async () => {
    const trajectoryId = await createSteps('trunk');
    const { page, faults } = await openPage(scene.browser);
    await show(page, `/trees/${trajectoryId}?step=2`);
    await operation(page, 'Branch here').click();
    await page.fill('dialog.operation input', 'twig');
    expect(await accessibilityFaults(page)).toEqual([]);
    await takeScreenshot(page, 'operation-light-1500');
    await confirm(page).click();
    await page.waitForSelector('text=The branch is created');
    const code = async (language: string) => {
      await page.locator('.code-view label', { hasText: language }).click();
      return page.locator('.code-view pre').innerText();
    };
    const typeScript = await code('TypeScript');
    const shell = (await code('CLI')).split('\n').find((line) => line.startsWith('curl')) ?? '';
    await page.click('text=Show it');
    await page.locator('[role=row]', { hasText: 'twig' }).waitFor();
    const branchId = new URL(page.url()).pathname.split('/')[2] ?? '';
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
    const { page, faults } = await openPage(scene.browser);
    await show(page, `/trees/${trajectoryId}?step=1`);
    await operation(page, 'Tag').click();
    await page.fill('dialog.operation input', 'best');
    await page.keyboard.press('Enter');
    await page.waitForSelector('dialog.operation', { state: 'detached' });
    await operation(page, 'Rename').click();
    await expect.poll(() => page.inputValue('dialog.operation input')).toBe('nameless');
    await page.fill('dialog.operation input', 'named');
    await confirm(page).click();
    await page.locator('h1', { hasText: 'named' }).waitFor();
    await page.waitForSelector('dialog.operation', { state: 'detached' });
    await operation(page, 'Label').click();
    await expect.poll(() => page.inputValue('dialog.operation textarea')).toBe('lr=0.1');
    await page.fill('dialog.operation textarea', 'lr=0.1\nseed');
    await confirm(page).click();
    await page.waitForSelector('dialog.operation .problem >> text=A label must be NAME=VALUE, got seed');
    await page.fill('dialog.operation textarea', 'lr=0.1\nseed=7');
    await confirm(page).click();
    await page.waitForSelector('dialog.operation', { state: 'detached' });
    const { trajectory } = await scene.client.trajectories.getTrajectory({ trajectoryId });
    expect([trajectory?.name, trajectory?.labels]).toEqual(['named', { lr: '0.1', seed: '7' }]);
    const { tag } = await scene.client.trajectories.getTag({ trajectoryId, name: 'best' });
    expect(tag?.stepNumber).toBe(1n);
    expect(faults).toEqual([]);
    await page.close();
  });

  it('show the message of the server if it refuses, and offer the same call as code', async () => {
    const trajectoryId = await createSteps('refused');
    const { page, faults } = await openPage(scene.browser);
    await show(page, `/trees/${trajectoryId}?step=1`);
    await operation(page, 'Tag').click();
    await page.fill('dialog.operation input', '1 <b>bad</b>');
    await confirm(page).click();
    const refusal = page.locator('dialog.operation .problem');
    const message = await scene.client.trajectories
      .setTag({ trajectoryId, stepNumber: 1n, name: '1 <b>bad</b>' })
      .catch((error: { rawMessage: string }) => error.rawMessage);
    await expect.poll(() => refusal.innerText()).toBe(message);
    await page.click('text=Copy as code');
    await page.context().grantPermissions(['clipboard-read', 'clipboard-write'], { origin: scene.url });
    await page.click('.code-view button');
    await page.waitForSelector('text=/^Copied$/');
    expect(await page.evaluate('navigator.clipboard.readText()')).toContain('await client.trajectories.setTag({');
    await page.keyboard.press('Escape');
    await expect.poll(() => page.locator('dialog.operation').count()).toBe(0);
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('operations of a run', () => {
  it('pause, resume and cancel, each after one confirmation, and follow the status', async () => {
    const runId = await startedRun('steered');
    const { page, faults } = await openPage(scene.browser);
    await show(page, `/runs/${runId}`);
    const status = async () => (await scene.client.runs.getRun({ runId })).run?.status;
    await operation(page, 'Pause').click();
    expect(await status()).toBe(Status.RUNNING);
    await confirm(page).click();
    await operation(page, 'Resume').waitFor();
    expect(await status()).toBe(Status.PAUSED);
    await operation(page, 'Resume').click();
    await confirm(page).click();
    await operation(page, 'Pause').waitFor();
    expect(await status()).toBe(Status.RUNNING);
    await operation(page, 'Cancel').click();
    await page.locator('dialog.operation').getByLabel('Message').fill('enough');
    await page.click('text=Cancel its rollouts, too');
    await confirm(page).click();
    await operation(page, 'Cancel').waitFor({ state: 'detached' });
    await page.waitForSelector('text=enough');
    expect(await status()).toBe(Status.CANCELLED);
    expect(faults).toEqual([]);
    await page.close();
  });

  it('stay as they were chosen while the run changes, so that the server decides', async () => {
    const runId = await startedRun('raced');
    const { page, faults } = await openPage(scene.browser);
    await show(page, `/runs/${runId}`);
    await operation(page, 'Pause').click();
    await scene.client.runs.completeRun({ runId });
    await operation(page, 'Pause').waitFor({ state: 'detached' });
    await confirm(page).click();
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
    const { page, faults } = await openPage(scene.browser);
    await show(page, `/rollouts/${rolloutId}`);
    await operation(page, 'Cancel').click();
    await confirm(page).click();
    await operation(page, 'Retry').click();
    await confirm(page).click();
    await operation(page, 'Cancel').waitFor();
    await scene.client.rollouts.claimRollouts({ runId, workerId: 'w', maxRollouts: 1 });
    await page.reload();
    await operation(page, 'Override verdict').click();
    await page.locator('dialog.operation').getByLabel('Verdict').selectOption('no success');
    await page.locator('dialog.operation').getByLabel('Reason').fill('it cheated');
    await confirm(page).click();
    await page.waitForSelector('text=/no success: it cheated page, attempt 1/');
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('a page that only reads', () => {
  it('offers no operation', async () => {
    const database = await createDatabase('sqlite');
    const server = await spawnServer({ database: database.url, args: ['--page', 'read'] });
    const client = connectClient({ address: server.url });
    const { trajectory } = await client.trajectories.createTrajectory({ name: 'read' });
    await client.trajectories.appendStep({ trajectoryId: trajectory?.id ?? '', step: { stepNumber: 0n } });
    const { page, faults } = await openPage(scene.browser);
    await page.goto(`${server.url}/trees/${trajectory?.id}`);
    await page.waitForSelector('.step-body');
    expect(await page.locator('.operations').count()).toBe(0);
    expect(faults).toEqual([]);
    await page.close();
    client.close();
    await server.kill();
    await database.drop();
  });
});
