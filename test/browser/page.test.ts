/** The page in Chromium, on the data of the demo. */
import { execFile } from 'node:child_process';
import path from 'node:path';
import process from 'node:process';
import { promisify } from 'node:util';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import { createDatabase, type TestDatabase } from '../support/database.ts';
import { type SpawnedServer, spawnServer } from '../support/spawned-server.ts';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.ts';
import { accessibilityFaults, launch, openPage, takeScreenshot } from './views.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
const run = promisify(execFile);

let browser: Browser;
let database: TestDatabase;
let server: SpawnedServer;
let proxy: TcpProxy;
let client: AnabranchClient;
/** The views, with an address of each on the data of the demo. */
let views: Readonly<Record<string, string>>;

beforeAll(async () => {
  database = await createDatabase('sqlite');
  server = await spawnServer({ database: database.url });
  proxy = await startTcpProxy(server);
  client = connectClient({ address: proxy.url });
  browser = await launch();
  await run(process.execPath, [path.join(ROOT, 'src/main.ts'), 'demo', '--address', server.url], { timeout: 100_000 });
  const { trajectories } = await client.trajectories.listTrajectories({ rootsOnly: true, withoutRun: true });
  const { runs } = await client.runs.listRuns({});
  const runId = runs[0]?.run?.id ?? '';
  const { rollouts } = await client.rollouts.listRollouts({ runId });
  const { nodes } = await client.trajectories.getTree({ trajectoryId: trajectories[0]?.id ?? '' });
  views = {
    home: '/',
    tree: `/trees/${trajectories[0]?.id}`,
    run: `/runs/${runId}`,
    group: `/runs/${runId}/groups/${rollouts[0]?.groupId}`,
    rollout: `/rollouts/${rollouts[0]?.id}`,
    search: '/search?q=angle',
    compare: `/compare?ids=${nodes.map(({ trajectory }) => trajectory?.id).join()}`,
  };
});
afterAll(async () => {
  await browser?.close();
  client?.close();
  await proxy?.close();
  await server?.kill();
  await database?.drop();
});

async function show(page: Page, view: string): Promise<void> {
  await page.goto(proxy.url + view);
  await page.waitForSelector('h1');
}

/** What a view shows last. */
const COMPLETE: Readonly<Record<string, string>> = {
  home: 'tbody tr',
  tree: '.changes',
  run: '.metric canvas',
  compare: '.columns a',
};
const ROWS = '[role=row]:not(.grid-head)';

describe('a person who has never seen the page', () => {
  it('finds the variant that fell, the step where it parted, and its state there', async () => {
    const { page, faults } = await openPage(browser);
    await show(page, '/');
    await page.click('text=CartPole-v1, seed 7');
    await page.click('text=/^Plot observation/');
    const fallen = page.locator(ROWS, { hasText: 'angle only' });
    expect(await fallen.innerText()).toContain('failed');
    expect(await fallen.innerText()).toContain('@200');
    await fallen.click();
    await page.fill('.stepper input[type=number]', '201');
    await page.press('.stepper input[type=number]', 'Enter');
    await page.waitForSelector('text=changes since step 200');
    const trajectoryId = new URL(page.url()).searchParams.get('at') ?? '';
    const { step } = await client.trajectories.getCheckpoint({ trajectoryId, stepNumber: 201n });
    const { theta } = JSON.parse(Buffer.from(step?.states[0]?.data ?? []).toString());
    const row = page.locator('tr', { has: page.locator('th', { hasText: /^\/theta$/ }) });
    expect(await row.innerText()).toContain(String(Number(theta.toPrecision(8))));
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('the tree view', () => {
  it('shows what GetTree returns', async () => {
    const { page } = await openPage(browser);
    await show(page, views.tree ?? '');
    await page.waitForSelector(ROWS);
    const { nodes } = await client.trajectories.getTree({ trajectoryId: views.tree?.split('/')[2] ?? '' });
    const shown = await page.locator(`${ROWS} .name`).allInnerTexts();
    expect(shown.sort()).toEqual(nodes.map(({ trajectory }) => trajectory?.name).sort());
    await page.close();
  });

  it('works by keyboard alone, and the address restores what is shown', async () => {
    const { page, faults } = await openPage(browser);
    await show(page, views.tree ?? '');
    await page.waitForSelector(ROWS);
    await page.focus('[role=treegrid]');
    await page.keyboard.press('ArrowDown');
    await page.keyboard.press('ArrowDown');
    await page.keyboard.press('p');
    const second = await page.locator('[aria-selected=true] .name').innerText();
    await page.keyboard.press('ArrowLeft');
    await page.keyboard.press('ArrowLeft');
    await expect.poll(() => page.locator(ROWS).count()).toBe(1);
    await page.keyboard.press('ArrowRight');
    await expect.poll(() => page.locator(ROWS).count()).toBe(5);
    await page.keyboard.press('j');
    await page.keyboard.press('j');
    const address = page.url();
    await page.reload();
    await page.waitForSelector(ROWS);
    expect(await page.locator('[aria-selected=true] .name').innerText()).toBe(second);
    expect(page.url()).toBe(address);
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('the value that the tree plots', () => {
  it('can be typed: a wrong one is not taken, and Escape goes back', async () => {
    const { page, faults } = await openPage(browser);
    await show(page, views.tree ?? '');
    await page.selectOption('.chooser select', 'other');
    await page.keyboard.press('Escape');
    await page.selectOption('.chooser select', 'other');
    await page.fill('.chooser input', 'theta');
    expect(await page.getAttribute('.chooser input', 'aria-invalid')).toBe('true');
    await page.press('.chooser input', 'Enter');
    await page.fill('.chooser input', 'state:env:/theta');
    await page.press('.chooser input', 'Enter');
    await page.waitForSelector('.chooser select');
    expect(await page.inputValue('.chooser select')).toBe('state:env:/theta');
    expect(new URL(page.url()).search).toContain('theta');
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('live changes', () => {
  it('appear without a reload: steps, branches, a seal, and a run in the list', async () => {
    const { trajectory } = await client.trajectories.createTrajectory({ name: 'growing' });
    const trajectoryId = trajectory?.id ?? '';
    const append = (number: bigint) =>
      client.trajectories.appendStep({ trajectoryId, step: { stepNumber: number, reward: Number(number) } });
    await append(0n);
    const { page, faults } = await openPage(browser);
    await show(page, `/trees/${trajectoryId}`);
    const row = (name: string) => page.locator(ROWS, { hasText: name });
    await row('growing').waitFor();
    await append(1n);
    await append(2n);
    await expect.poll(() => row('growing').innerText()).toMatch(/\s3\s/);
    // The last step is followed while it is shown.
    await expect.poll(() => page.inputValue('.stepper input[type=number]')).toBe('2');
    await client.trajectories.branchTrajectory({ trajectoryId, stepNumber: 1n, name: 'grown branch' });
    await row('grown branch').waitFor();
    await client.trajectories.sealTrajectory({ trajectoryId, seal: { status: 6 } });
    await expect.poll(() => row('growing').innerText()).toContain('failed');
    await show(page, '/');
    await client.runs.createRun({ name: 'a new run' });
    await page.locator('tr', { hasText: 'a new run' }).waitFor();
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('the run view', () => {
  it('keeps its values while the connection is lost, says so, and recovers by itself', async () => {
    const { page, faults } = await openPage(browser);
    await show(page, views.run ?? '');
    await proxy.cut();
    await page.waitForSelector('text=connection lost');
    expect(await page.locator('h1').innerText()).toBe('run-1');
    await page.waitForSelector('text=connection lost', { state: 'detached' });
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('the first load', () => {
  it('has at most 100 KiB', async () => {
    const { page } = await openPage(browser);
    let bytes = 0;
    page.on('response', (response) => {
      bytes += Number(response.headers()['content-length'] ?? 0);
    });
    await page.goto(proxy.url, { waitUntil: 'load' });
    await page.waitForSelector('h1');
    expect(bytes).toBeGreaterThan(50 * 1024);
    expect(bytes).toBeLessThanOrEqual(100 * 1024);
    await page.close();
  });
});

describe('what agents wrote', () => {
  it('is text, whatever it contains', async () => {
    const nasty = '<img src=x onerror=alert(1)><script>alert(2)</script>\u202egnp.exe';
    const deep = `${'['.repeat(90)}1${']'.repeat(90)}`;
    const { trajectory } = await client.trajectories.createTrajectory({ name: nasty, labels: { '<b>': nasty } });
    const trajectoryId = trajectory?.id ?? '';
    const contents = [
      { text: nasty },
      { text: 'x'.repeat(600_000) },
      { json: deep },
      { data: Buffer.from('no image'), mediaType: 'image/png' },
      { data: Buffer.from('<svg onload="alert(3)"/>'), mediaType: 'image/svg+xml' },
      { data: Buffer.from('<script>alert(4)</script>'), mediaType: `text/html;${'x'.repeat(40)}` },
      { uri: 'javascript:alert(5)' },
    ];
    const step = {
      reward: Number.NaN,
      observations: contents.map((content) => ({ type: nasty.slice(0, 60), content })),
    };
    await client.trajectories.appendStep({ trajectoryId, step: { ...step, stepNumber: 0n } });
    const last = { stepNumber: 1n, reward: Number.POSITIVE_INFINITY, infoJson: '{"constructor":1e400}' };
    await client.trajectories.appendStep({ trajectoryId, step: last }).catch(() => undefined);
    const { page, faults } = await openPage(browser);
    await show(page, `/trees/${trajectoryId}?step=0&value=observation:/0`);
    await page.waitForSelector('text=The image cannot be shown.');
    expect(await page.locator('h1').innerText()).toContain('<img src=x onerror=alert(1)>');
    expect(await page.locator('main script, main img[src=x], main a[href^=javascript]').count()).toBe(0);
    expect(faults).toEqual([]);
    await page.close();
    await client.trajectories.deleteTrajectory({ trajectoryId });
  });

  it.each(['/trees/nonsense', '/runs/0199f3a2-7c11-7d2e-8a4b-0123456789ab', '/rollouts/%00'])(
    '%s says that nothing is there',
    async (view) => {
      const { page, faults } = await openPage(browser);
      await page.goto(proxy.url + view);
      await page.waitForSelector('.problem');
      expect(faults).toEqual([]);
      await page.close();
    },
  );
});

describe.each(['light', 'dark'] as const)('every view, %s', (theme) => {
  it('has no fault that axe finds, and is photographed at three widths', async () => {
    const { page, faults } = await openPage(browser, theme);
    const found: string[] = [];
    for (const [name, view] of Object.entries(views)) {
      await show(page, view);
      await page.waitForSelector(COMPLETE[name] ?? 'h1');
      for (const width of [1500, 900, 320]) {
        await page.setViewportSize({ width, height: 900 });
        await takeScreenshot(page, `${name}-${theme}-${width}`);
        const overflow = await page.locator('html').evaluate((html) => html.scrollWidth - html.clientWidth);
        if (overflow > 0) found.push(`${name} at ${width}: ${overflow} px too wide`);
      }
      await page.setViewportSize({ width: 1500, height: 900 });
      found.push(...(await accessibilityFaults(page)).map((fault) => `${name}: ${fault}`));
    }
    expect(found).toEqual([]);
    expect(faults).toEqual([]);
    await page.close();
  });
});
