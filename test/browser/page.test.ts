/** The page in Chromium, on the data of the demo. */
import { execFile } from 'node:child_process';
import path from 'node:path';
import process from 'node:process';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.ts';
import { openPageScene, type PageScene } from './page_scene.ts';
import {
  accessibilityFaults,
  addressOf,
  attributeOf,
  countOf,
  expectToFit,
  fill,
  has,
  inputOf,
  is,
  openPage,
  ROWS,
  show,
  THEMES,
  takeScreenshot,
  textOf,
  textsOf,
  waitForNoText,
  waitForText,
  waitForWhole,
} from './views.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
const run = promisify(execFile);

let scene: PageScene;
/** A proxy in front of the server, which cuts connections. */
let proxy: TcpProxy;
/**
 * The views, with an address of each on the data of the demo. Unless PLAYED_DEMO names a database in which it has
 * been played, the demo plays while tests without its data run.
 */
let played: Promise<Readonly<Record<string, string>>>;

beforeAll(async () => {
  scene = await openPageScene();
  proxy = await startTcpProxy(scene.target);
  played = playDemo(scene);
  played.catch(() => undefined); // rethrown by each test that awaits it
});
afterAll(async () => {
  await played?.catch(() => undefined);
  await scene?.close();
  await proxy?.close();
});

async function playDemo({ client, url }: PageScene): Promise<Readonly<Record<string, string>>> {
  if (process.env.PLAYED_DEMO === undefined) {
    await run(process.execPath, [path.join(ROOT, 'src/main.ts'), 'demo', '--address', url], { timeout: 100_000 });
  }
  const roots = { rootsOnly: true, withoutRun: true, text: 'CartPole-v1, seed 7' };
  const { trajectories } = await client.trajectories.listTrajectories(roots);
  const { runs } = await client.runs.listRuns({ text: 'run-1' });
  const runId = runs[0]?.run?.id ?? '';
  const { rollouts } = await client.rollouts.listRollouts({ runId });
  const { nodes } = await client.trajectories.getTree({ trajectoryId: trajectories[0]?.id ?? '' });
  return {
    home: '/',
    tree: `/trees/${trajectories[0]?.id}`,
    run: `/runs/${runId}`,
    group: `/runs/${runId}/groups/${rollouts[0]?.groupId}`,
    rollout: `/rollouts/${rollouts[0]?.id}`,
    search: '/search?q=angle',
    compare: `/compare?ids=${nodes.map(({ trajectory }) => trajectory?.id).join()}`,
  };
}

/** What a view shows last. */
const COMPLETE: Readonly<Record<string, string>> = {
  home: 'tbody tr',
  tree: '.changes',
  run: '.metric canvas',
  compare: '.columns a',
};

describe('live changes', () => {
  it('appear without a reload: steps, branches, a seal, and a run in the list', async () => {
    const { trajectory } = await scene.client.trajectories.createTrajectory({ name: 'growing' });
    const trajectoryId = trajectory?.id ?? '';
    const append = (number: bigint) =>
      scene.client.trajectories.appendStep({ trajectoryId, step: { stepNumber: number, reward: Number(number) } });
    await append(0n);
    const { page, faults } = await openPage(scene.context);
    await show(page, `${scene.url}/trees/${trajectoryId}`);
    const row = (name: string) => has(ROWS, name);
    await page.waitForSelector(row('growing'));
    await append(1n);
    await append(2n);
    await expect.poll(() => textOf(page, row('growing'))).toMatch(/\s3\s/);
    // The last step is followed while it is shown.
    await expect.poll(() => inputOf(page, '.stepper input[type=number]')).toBe('2');
    await scene.client.trajectories.branchTrajectory({ trajectoryId, stepNumber: 1n, name: 'grown branch' });
    await page.waitForSelector(row('grown branch'));
    await scene.client.trajectories.sealTrajectory({ trajectoryId, seal: { status: 6 } });
    await expect.poll(() => textOf(page, row('growing'))).toContain('failed');
    await show(page, scene.url);
    await scene.client.runs.createRun({ name: 'a new run' });
    await page.waitForSelector(has('tr', 'a new run'));
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('the first load', () => {
  it('has at most 100 KiB', async () => {
    const { page } = await openPage(scene.context);
    let bytes = 0;
    page.on('response', (response) => {
      bytes += Number(response.headers()['content-length'] ?? 0);
    });
    await page.goto(scene.url, { waitUntil: 'load' });
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
    const { trajectory } = await scene.client.trajectories.createTrajectory({ name: nasty, labels: { '<b>': nasty } });
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
    await scene.client.trajectories.appendStep({ trajectoryId, step: { ...step, stepNumber: 0n } });
    const last = { stepNumber: 1n, reward: Number.POSITIVE_INFINITY, infoJson: '{"constructor":1e400}' };
    await scene.client.trajectories.appendStep({ trajectoryId, step: last }).catch(() => undefined);
    const { page, faults } = await openPage(scene.context);
    await show(page, `${scene.url}/trees/${trajectoryId}?step=0&value=observation:/0`);
    await waitForText(page, 'The image cannot be shown.');
    await waitForText(page, '<img src=x onerror=alert(1)>', 'h1');
    expect(await countOf(page, 'main script, main img[src=x], main a[href^=javascript]')).toBe(0);
    expect(faults).toEqual([]);
    await page.close();
    await scene.client.trajectories.deleteTrajectory({ trajectoryId });
  });

  it.each(['/trees/nonsense', '/runs/0199f3a2-7c11-7d2e-8a4b-0123456789ab', '/rollouts/%00'])(
    '%s says that nothing is there',
    async (view) => {
      const { page, faults } = await openPage(scene.context);
      await page.goto(scene.url + view);
      await page.waitForSelector('.problem');
      expect(faults).toEqual([]);
      await page.close();
    },
  );
});

describe('a person who has never seen the page', () => {
  it('finds the variant that fell, the step where it parted, and its state there', async () => {
    await played;
    const { page, faults } = await openPage(scene.context);
    await show(page, scene.url);
    await page.locator(has('a', 'CartPole-v1, seed 7')).click();
    await page.locator(has('button', 'Plot observation')).click();
    const fallen = has(ROWS, 'angle only');
    await waitForText(page, 'failed', fallen);
    await waitForText(page, '@200', fallen);
    await page.locator(fallen).click();
    await fill(page, '.stepper input[type=number]', '201');
    await page.keyboard.press('Enter');
    await waitForText(page, 'changes since step 200');
    const trajectoryId = new URL(await addressOf(page)).searchParams.get('at') ?? '';
    const { step } = await scene.client.trajectories.getCheckpoint({ trajectoryId, stepNumber: 201n });
    const { theta } = JSON.parse(Buffer.from(step?.states[0]?.data ?? []).toString());
    const row = `${is('tr th', '/theta')} ~ td`;
    await waitForText(page, String(Number(theta.toPrecision(8))), row);
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('the tree view', () => {
  it('shows what GetTree returns', async () => {
    const views = await played;
    const { page } = await openPage(scene.context);
    await show(page, `${scene.url}${views.tree}`);
    const { nodes } = await scene.client.trajectories.getTree({ trajectoryId: views.tree?.split('/')[2] ?? '' });
    const shown = async () => (await textsOf(page, `${ROWS} .name`)).sort();
    await expect.poll(shown).toEqual(nodes.map(({ trajectory }) => trajectory?.name).sort());
    await page.close();
  });

  it('works by keyboard alone, and the address restores what is shown', async () => {
    const views = await played;
    const { page, faults } = await openPage(scene.context);
    await show(page, `${scene.url}${views.tree}`);
    await expect.poll(() => countOf(page, ROWS)).toBe(5);
    const [, , second = ''] = await textsOf(page, `${ROWS} .name`);
    const isSelected = () => waitForText(page, second, '[aria-selected=true] .name');
    await page.focus('[role=treegrid]');
    await page.keyboard.press('ArrowDown');
    await page.keyboard.press('ArrowDown');
    await page.keyboard.press('p');
    await isSelected();
    await page.keyboard.press('ArrowLeft');
    await page.keyboard.press('ArrowLeft');
    await expect.poll(() => countOf(page, ROWS)).toBe(1);
    await page.keyboard.press('ArrowRight');
    await expect.poll(() => countOf(page, ROWS)).toBe(5);
    await page.keyboard.press('j');
    await page.keyboard.press('j');
    await isSelected();
    const address = await addressOf(page);
    await page.reload();
    await isSelected();
    expect(await addressOf(page)).toBe(address);
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('the value that the tree plots', () => {
  it('can be typed: a wrong one is not taken, and Escape goes back', async () => {
    const views = await played;
    const { page, faults } = await openPage(scene.context);
    await show(page, `${scene.url}${views.tree}`);
    await fill(page, '.chooser select', 'other');
    await page.keyboard.press('Escape');
    await fill(page, '.chooser select', 'other');
    await fill(page, '.chooser input', 'theta');
    await expect.poll(() => attributeOf(page, '.chooser input', 'aria-invalid')).toBe('true');
    await page.keyboard.press('Enter');
    await fill(page, '.chooser input', 'state:env:/theta');
    await page.keyboard.press('Enter');
    await expect.poll(() => inputOf(page, '.chooser select')).toBe('state:env:/theta');
    await expect.poll(() => new URL(page.url()).search).toContain('theta');
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('the run view', () => {
  it('keeps its values while the connection is lost, says so, and recovers by itself', async () => {
    const views = await played;
    const { page, faults } = await openPage(scene.context);
    await show(page, `${proxy.url}${views.run}`);
    // The page cannot reconnect before the test has seen that it was cut.
    proxy.blackhole();
    proxy.cut();
    await waitForText(page, 'connection lost');
    expect(await textOf(page, 'h1')).toBe('run-1');
    await proxy.release();
    await waitForNoText(page, 'connection lost');
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe.each(THEMES)('every view, %s', (theme) => {
  it('has no fault that axe finds, and is photographed at three widths', async () => {
    const views = await played;
    const { page, faults } = await openPage(scene.context, theme);
    const found: string[] = [];
    page.on('request', (request) => {
      const isOwn = [scene.url, 'blob:'].some((start) => request.url().startsWith(start));
      if (!isOwn) found.push(`a request to ${request.url()}`);
    });
    for (const [name, view] of Object.entries(views)) {
      await show(page, scene.url + view);
      await page.waitForSelector(COMPLETE[name] ?? 'h1');
      await waitForWhole(page);
      for (const width of [1500, 900, 320]) {
        await page.setViewport({ width, height: 900 });
        await takeScreenshot(page, `${name}-${theme}-${width}`);
        await expectToFit(page, `${name} at ${width}`);
      }
      await page.setViewport({ width: 1500, height: 900 });
      found.push(...(await accessibilityFaults(page)).map((fault) => `${name}: ${fault}`));
    }
    expect(found).toEqual([]);
    expect(faults).toEqual([]);
    await page.close();
  });
});
