/** Live updates: all windows of a browser share one stream, which survives lost connections. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { seededRandom } from '../faults/random.ts';
import { dose } from '../support/dose.ts';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.ts';
import { cutAndCompare, Growing } from './growing.ts';
import { openPageScene, type PageScene } from './page_scene.ts';
import { type OpenPage, openPage, ROWS, show, waitForText } from './views.ts';

const WINDOWS = dose(8, 14);
const CUTS = dose(5, 20);
/** Connections that a browser opens to one server over HTTP/1.1. */
const CONNECTIONS = 6;

let scene: PageScene;
let proxy: TcpProxy;
beforeAll(async () => {
  scene = await openPageScene();
  proxy = await startTcpProxy(scene.target);
});
afterAll(async () => {
  await proxy?.close();
  await scene?.close();
});

async function open(view: string, withSharedWorkers = true): Promise<OpenPage> {
  const { page, faults } = await openPage(scene.context);
  if (!withSharedWorkers) await page.evaluateOnNewDocument('delete globalThis.SharedWorker');
  await show(page, proxy.url + view);
  return { page, faults };
}

async function close(...windows: readonly OpenPage[]): Promise<void> {
  expect(windows.flatMap(({ faults }) => faults)).toEqual([]);
  await Promise.all(windows.map(({ page }) => page.close()));
}

describe('all windows of a browser', () => {
  it(`load and update, also ${WINDOWS} of them at once, over few connections`, async () => {
    const growing = await Growing.create(scene.client, 'many windows');
    const views = [`/trees/${growing.trajectoryId}`, `/runs/${growing.runId}`];
    const windows: OpenPage[] = [];
    for (let at = 0; at < WINDOWS; at += 1) windows.push(await open(views[at % 2] ?? ''));
    expect(await Promise.all(windows.map(({ page }) => page.evaluate('document.visibilityState')))).toEqual(
      Array(WINDOWS).fill('visible'),
    );
    for (let round = 0; round < 2; round += 1) {
      await growing.grow();
      for (const [at, { page }] of windows.entries()) {
        await (at % 2 === 0 ? growing.isInTree(page) : growing.isInRun(page));
      }
    }
    expect(proxy.open).toBeLessThanOrEqual(CONNECTIONS);
    await close(...windows);
  });

  it('keep their values apart: a window whose resource is gone says so, and the others continue', async () => {
    const growing = await Growing.create(scene.client, 'others');
    const doomed = await scene.client.trajectories.createTrajectory({ name: 'doomed' });
    const doomedId = doomed.trajectory?.id ?? '';
    const tree = await open(`/trees/${growing.trajectoryId}`);
    const gone = await open(`/trees/${doomedId}`);
    await gone.page.waitForSelector(ROWS);
    await scene.client.trajectories.deleteTrajectory({ trajectoryId: doomedId });
    await waitForText(gone.page, 'deleted');
    await growing.grow();
    await growing.isInTree(tree.page);
    await close(tree, gone);
  });

  it('update without shared workers too', async () => {
    const growing = await Growing.create(scene.client, 'alone');
    const tree = await open(`/trees/${growing.trajectoryId}`, false);
    const run = await open(`/runs/${growing.runId}`, false);
    await growing.grow();
    await growing.isInTree(tree.page);
    await growing.isInRun(run.page);
    await close(tree, run);
  });
});

describe('lost connections', () => {
  const random = seededRandom();

  it(`at ${CUTS} random places leave the windows with what the tables hold (seed ${random.seed})`, async () => {
    const growing = await Growing.create(scene.client, 'cut');
    const tree = await open(`/trees/${growing.trajectoryId}`);
    const run = await open(`/runs/${growing.runId}`);
    await cutAndCompare(growing, { tree: tree.page, run: run.page }, proxy, random, CUTS);
    await close(tree, run);
  });
});
