/** Files with the page, opened from disk in Chromium: no server runs then. */
import { randomBytes } from 'node:crypto';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { AnabranchClient } from '../../src/client/index.ts';
import { runCli } from '../cli/run_cli.ts';
import { startTestServer } from '../support/test-server.ts';
import { openPageScene, type PageScene } from './page_scene.ts';
import {
  accessibilityFaults,
  addressOf,
  countOf,
  fill,
  has,
  inputOf,
  openPage,
  ROWS,
  textOf,
  waitForText,
} from './views.ts';

const PIXEL = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';

let scene: PageScene;
let folder: string;
let main: string;
let branch: string;

beforeAll(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-file-'));
  // A server of its own, which is stopped before the files are opened.
  const server = await startTestServer();
  scene = await openPageScene(server.url);
  const { client } = scene;
  const at = ['--address', server.url];
  await plant(client);
  const { run } = await client.runs.createRun({ name: 'a run', configJson: '{"lr":0.1}' });
  const runId = run?.id ?? '';
  await client.runs.logMetrics({
    runId,
    points: [1n, 2n, 3n].map((metricStep) => ({ metricStep, key: 'loss', value: 4.5 })),
  });
  const write = async (args: string[]) =>
    expect(await runCli(['page', ...args, ...at])).toMatchObject({ code: 0, stderr: '' });
  await write([main, '-o', path.join(folder, 'tree.html'), '--with-states']);
  await write([`${branch}@fork`, '-o', path.join(folder, 'bare.html'), '--alone']);
  await write(['a run', '-o', path.join(folder, 'run.html')]);
  const picture = ['picture', main, '-o', path.join(folder, 'tree.svg'), ...at];
  expect(await runCli(picture)).toMatchObject({ code: 0 });
  await failures(client, at);
  await server.stop();
});
afterAll(async () => {
  await scene?.close();
  await rm(folder, { recursive: true, force: true });
});

/** A main line of ten steps with states, and two branches at step 5. */
async function plant(client: AnabranchClient): Promise<void> {
  const nasty = '</script><script>alert(1)</script><!--';
  const created = await client.trajectories.createTrajectory({ name: nasty, labels: { a: nasty } });
  main = created.trajectory?.id ?? '';
  const grow = async (trajectoryId: string, from: number, reward: number) => {
    for (let number = from; number < from + 5; number += 1) {
      const state = {
        name: 'env',
        mediaType: 'application/json',
        data: Buffer.from(JSON.stringify({ angle: number * reward })),
      };
      const picture = { name: 'screen', mediaType: 'image/png', data: Buffer.from(PIXEL, 'base64') };
      const observations = [{ type: 'json', content: { json: `{"x":${number * reward}}` } }];
      const step = { stepNumber: BigInt(number), reward, observations, states: [state, picture] };
      await client.trajectories.appendStep({ trajectoryId, step });
    }
  };
  await grow(main, 0, 1);
  await grow(main, 5, 1);
  for (const [name, reward] of [
    ['better', 2],
    ['worse', -1],
  ] as const) {
    const branched = await client.trajectories.branchTrajectory({ trajectoryId: main, stepNumber: 5n, name });
    branch = branched.trajectory?.id ?? '';
    await grow(branch, 6, reward);
  }
  await client.trajectories.setTag({ trajectoryId: branch, name: 'fork', stepNumber: 5n });
}

/** What the command refuses, while a server runs. */
const refused: { readonly code: number; readonly stderr: string }[] = [];
async function failures(client: AnabranchClient, at: readonly string[]): Promise<void> {
  const file = path.join(folder, 'taken.html');
  await writeFile(file, 'mine');
  refused.push(await runCli(['page', main, '-o', file, ...at]));
  refused.push(
    await runCli(['page', '0199f3a2-7c11-7d2e-8a4b-0123456789ab', '-o', path.join(folder, 'none.html'), ...at]),
  );
  refused.push(await runCli(['page', main, ...at]));
  const { trajectory } = await client.trajectories.createTrajectory({ name: 'large' });
  for (let stepNumber = 0n; stepNumber < 130n; stepNumber += 1n) {
    const states = [{ name: 'env', mediaType: 'application/octet-stream', data: randomBytes(200_000) }];
    await client.trajectories.appendStep({ trajectoryId: trajectory?.id ?? '', step: { stepNumber, states } });
  }
  const large = path.join(folder, 'large.html');
  refused.push(await runCli(['page', trajectory?.id ?? '', '--with-states', '-o', large, ...at]));
}

const fileOf = (name: string) => `file://${path.join(folder, name)}`;

describe('a file with a tree and its states', () => {
  it('opens from disk, and is walked by rows, steps, values and links, without a request', async () => {
    const { page, faults } = await openPage(scene.context);
    const requests: string[] = [];
    page.on('request', (request) => requests.push(request.url().slice(0, 30)));
    await page.goto(fileOf('tree.html'));
    await page.waitForSelector(ROWS);
    await expect.poll(() => textOf(page, 'h1')).toBe('</script><script>alert(1)</script><!--');
    await expect.poll(() => countOf(page, ROWS)).toBe(3);
    await page.locator(has(ROWS, 'worse')).click();
    await fill(page, '.stepper input[type=number]', '7');
    await page.keyboard.press('Enter');
    await waitForText(page, '1 change since step 6');
    await waitForText(page, /−?-?6\s.*-7/, has('tr', '/angle'));
    await expect.poll(() => page.$eval('.image img', (image) => (image as HTMLImageElement).naturalWidth)).toBe(1);
    await fill(page, '.chooser select', 'observation:/x');
    await expect.poll(() => new URL(page.url()).hash).toContain('value=observation');
    const address = await addressOf(page);
    await page.locator(has('a', 'Anabranch')).click();
    await page.waitForSelector('#trees');
    await page.goBack();
    await expect.poll(() => page.url()).toBe(address);
    await page.reload();
    await page.waitForSelector(ROWS);
    await expect.poll(() => inputOf(page, '.stepper input[type=number]')).toBe('7');
    expect(await accessibilityFaults(page)).toEqual([]);
    expect(requests.filter((url) => !/^(?:file|blob):/.test(url))).toEqual([]);
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('a file with a single trajectory', () => {
  it('begins at the named step, has its ancestors only, and says that it has no states', async () => {
    const { page, faults } = await openPage(scene.context, 'dark');
    await page.goto(fileOf('bare.html'));
    await page.waitForSelector(ROWS);
    await expect.poll(() => countOf(page, ROWS)).toBe(2);
    await expect.poll(() => inputOf(page, '.stepper input[type=number]')).toBe('5');
    await waitForText(page, 'This file was made without states.', '.step-body');
    expect(await countOf(page, '::-p-text(State env)')).toBe(0);
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('a file with a run', () => {
  it('shows the run and its metrics', async () => {
    const { page, faults } = await openPage(scene.context);
    await page.goto(fileOf('run.html'));
    await page.waitForSelector('.metric canvas');
    await expect.poll(() => textOf(page, 'h1')).toBe('a run');
    await waitForText(page, '4.5', '.metric');
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('anabranch picture', () => {
  it('writes a document that a browser parses and draws, with names as text', async () => {
    const { page, faults } = await openPage(scene.context);
    await page.goto(fileOf('tree.svg'));
    expect(await page.evaluate(() => document.documentElement.nodeName)).toBe('svg');
    expect(await countOf(page, 'parsererror, script')).toBe(0);
    const texts = await page.$$eval('text', (all) => all.map((each) => each.textContent));
    expect(texts).toContain('@5 better');
    expect(texts).toContain('</script><script>alert(1)</script><!--');
    const sizes = await page.$$eval('path', (paths) => paths.map((each) => each.getBoundingClientRect().width));
    expect(sizes.filter((width) => width > 100).length).toBeGreaterThan(5);
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('anabranch page', () => {
  it('replaces no file, and names what does not exist, what is missing, and what is too large', async () => {
    expect(refused.map(({ code }) => code)).toEqual([1, 1, 2, 1]);
    expect(refused[0]?.stderr).toContain('exists already');
    expect(refused[1]?.stderr).toContain('0199f3a2-7c11-7d2e-8a4b-0123456789ab');
    expect(refused[2]?.stderr).toContain("required option '-o, --output <FILE>' not specified");
    expect(refused[3]?.stderr).toContain('The file would be larger than 32 MiB.');
    expect(await readFile(path.join(folder, 'taken.html'), 'utf8')).toBe('mine');
    expect((await readdir(folder)).sort()).toEqual(['bare.html', 'run.html', 'taken.html', 'tree.html', 'tree.svg']);
  });
});
