/** Live updates: all windows of a browser share one stream, which survives lost connections. */
import process from 'node:process';
import type { BrowserContext, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.ts';
import { openPageScene, type PageScene } from './page_scene.ts';
import { noteFaults } from './views.ts';

/** `PAGE_CUTS=200` is the large dose. A failure prints the seed, and `PAGE_SEED` repeats the choices. */
const CUTS = Number(process.env.PAGE_CUTS ?? 20);
const SEED = Number(process.env.PAGE_SEED ?? Math.floor(Math.random() * 2 ** 31));
const WINDOWS = 14;
/** Connections that a browser opens to one server over HTTP/1.1. */
const CONNECTIONS = 6;
const ROWS = '[role=row]:not(.grid-head)';

let scene: PageScene;
let proxy: TcpProxy;
beforeAll(async () => {
  scene = await openPageScene();
  proxy = await startTcpProxy(target(scene.url));
});
afterAll(async () => {
  await proxy?.close();
  await scene?.close();
});

function target(url: string) {
  const { hostname, port } = new URL(url);
  return { host: hostname, port: Number(port) };
}

/** A trajectory and a run that grow. */
class Growing {
  trajectoryId = '';
  runId = '';
  steps = 0;

  async create(name: string): Promise<this> {
    const { trajectories, runs } = scene.client;
    this.trajectoryId = (await trajectories.createTrajectory({ name })).trajectory?.id ?? '';
    this.runId = (await runs.createRun({ name: `run of ${name}`, mainTrajectory: {} })).run?.id ?? '';
    await this.grow();
    return this;
  }

  async grow(): Promise<void> {
    const { trajectories, runs } = scene.client;
    const stepNumber = BigInt(this.steps);
    this.steps += 1;
    await trajectories.appendStep({ trajectoryId: this.trajectoryId, step: { stepNumber, reward: 1 } });
    await runs.logMetrics({ runId: this.runId, points: [{ key: 'loss', metricStep: stepNumber, value: this.steps }] });
    await runs.updateRun({ runId: this.runId, updateMask: { paths: ['phase'] }, phase: `phase ${this.steps}` });
  }
}

async function open(context: BrowserContext, view: string): Promise<{ page: Page; faults: string[] }> {
  const page = await context.newPage();
  const faults = noteFaults(page);
  await page.goto(proxy.url + view);
  await page.waitForSelector('h1');
  return { page, faults };
}

/** Waits until a window shows how far something has grown. */
const shows = {
  tree: (page: Page, { steps }: Growing) =>
    expect.poll(() => page.locator(ROWS).first().innerText()).toMatch(new RegExp(`\\s${steps}\\s`)),
  run: (page: Page, { steps }: Growing) => page.getByText(`phase ${steps}`, { exact: true }).first().waitFor(),
  metric: (page: Page, { steps }: Growing) =>
    page.locator(`canvas[aria-label*=" ${steps} point"]`).waitFor({ state: 'attached' }),
};

describe('all windows of a browser', () => {
  it(`load and update, also ${WINDOWS} of them at once, over few connections`, async () => {
    const growing = await new Growing().create('many windows');
    const context = await scene.browser.newContext();
    const views = [`/trees/${growing.trajectoryId}`, `/runs/${growing.runId}`];
    const windows = [];
    for (let at = 0; at < WINDOWS; at += 1) windows.push(await open(context, views[at % 2] ?? ''));
    expect(await Promise.all(windows.map(({ page }) => page.evaluate('document.visibilityState')))).toEqual(
      Array(WINDOWS).fill('visible'),
    );
    for (let round = 0; round < 2; round += 1) {
      await growing.grow();
      for (const [at, { page }] of windows.entries()) {
        await (at % 2 === 0 ? shows.tree : shows.run)(page, growing);
        if (at % 2 === 1) await shows.metric(page, growing);
      }
    }
    expect(proxy.open).toBeLessThanOrEqual(CONNECTIONS);
    expect(windows.flatMap(({ faults }) => faults)).toEqual([]);
    await context.close();
  });

  it('keep their values apart: a window whose resource is gone says so, and the others continue', async () => {
    const growing = await new Growing().create('others');
    const doomed = await scene.client.trajectories.createTrajectory({ name: 'doomed' });
    const doomedId = doomed.trajectory?.id ?? '';
    const context = await scene.browser.newContext();
    const tree = await open(context, `/trees/${growing.trajectoryId}`);
    const gone = await open(context, `/trees/${doomedId}`);
    await gone.page.locator(ROWS).first().waitFor();
    await scene.client.trajectories.deleteTrajectory({ trajectoryId: doomedId });
    await gone.page.getByText('deleted').first().waitFor();
    await growing.grow();
    await shows.tree(tree.page, growing);
    expect([...tree.faults, ...gone.faults]).toEqual([]);
    await context.close();
  });

  it('update without shared workers too', async () => {
    const growing = await new Growing().create('alone');
    const context = await scene.browser.newContext();
    await context.addInitScript(() => Reflect.deleteProperty(globalThis, 'SharedWorker'));
    const tree = await open(context, `/trees/${growing.trajectoryId}`);
    const run = await open(context, `/runs/${growing.runId}`);
    await growing.grow();
    await shows.tree(tree.page, growing);
    await shows.run(run.page, growing);
    expect([...tree.faults, ...run.faults]).toEqual([]);
    await context.close();
  });
});

describe('lost connections', () => {
  it(
    `at ${CUTS} random places leave the windows with what the tables hold (seed ${SEED})`,
    async () => {
      const random = randomFrom(SEED);
      const growing = await new Growing().create('cut');
      const context = await scene.browser.newContext();
      const tree = await open(context, `/trees/${growing.trajectoryId}`);
      const run = await open(context, `/runs/${growing.runId}`);
      await shows.metric(run.page, growing);
      for (let cut = 0; cut < CUTS; cut += 1) {
        // The windows read something after each cut, so there is always something to cut.
        const lost = proxy.cutAfter(1 + Math.floor(random() * 3000), 'toClient');
        await Promise.all([lost, growUntil(growing, lost)]);
      }
      await growing.grow();
      await scene.client.trajectories.branchTrajectory({
        trajectoryId: growing.trajectoryId,
        stepNumber: 0n,
        name: 'last branch',
      });
      await shows.tree(tree.page, growing);
      await tree.page.locator(ROWS, { hasText: 'last branch' }).waitFor();
      await shows.run(run.page, growing);
      await shows.metric(run.page, growing);
      for (const { page } of [tree, run]) await page.waitForSelector('text=connection lost', { state: 'detached' });
      const { nodes } = await scene.client.trajectories.getTree({ trajectoryId: growing.trajectoryId });
      expect(await tree.page.locator(`${ROWS} .name`).allInnerTexts()).toEqual(
        nodes.map(({ trajectory }) => trajectory?.name),
      );
      expect([...tree.faults, ...run.faults]).toEqual([]);
      await context.close();
    },
    60_000 + CUTS * 5_000,
  );
});

/** Writes until a promise resolves, each time after the write before. */
async function growUntil(growing: Growing, done: Promise<unknown>): Promise<void> {
  let isDone = false;
  const end = done.then(() => {
    isDone = true;
  });
  while (!isDone) {
    await growing.grow();
    await Promise.race([end, new Promise((resolve) => setTimeout(resolve, 20))]);
  }
}

/** mulberry32. */
function randomFrom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
