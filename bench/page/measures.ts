import type { BrowserContext } from 'puppeteer-core';
import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import { startTcpProxy } from '../../test/support/tcp-proxy.ts';
import type { Run } from '../bench.ts';
import { pause, percentile } from '../programs/program.ts';
import type { BenchServer } from '../resources.ts';
import { BenchBrowser, evaluated, openView, type Shown, seen } from './browser.ts';
import { logPoints, METRIC_KEYS } from './data.ts';

export interface Scene extends AsyncDisposable {
  readonly server: BenchServer;
  readonly client: AnabranchClient;
  readonly browser: BenchBrowser;
  /** A browser that has the files of the page, and a window of it. */
  readonly context: BrowserContext;
  /** Where the page is. */
  readonly url: string;
}

export async function openScene(run: Run): Promise<Scene> {
  const server = await run.resources.server('real', run.engine);
  const url = `http://${server.address}`;
  const client = connectClient({ address: server.address });
  const browser = await BenchBrowser.launch();
  const context = await browser.newContext();
  await openView(context, url, { selector: 'h1' });
  const close = async () => {
    client.close();
    await browser.close();
  };
  return { server, client, browser, context, url, [Symbol.asyncDispose]: close };
}

/** Loads the list of runs in a browser that has nothing of the page. Returns the time, and all bytes of the server. */
export async function loadFirst({ server, browser }: Scene, shown: Shown) {
  const [host = '', port] = server.address.split(':');
  await using proxy = await startTcpProxy({ host, port: Number(port) });
  const context = await browser.newContext();
  const { ms } = await openView(context, proxy.url, shown);
  let bytes = 0;
  while (bytes !== proxy.delivered('toClient')) {
    bytes = proxy.delivered('toClient');
    await pause(0.5);
  }
  await context.close();
  return { ms, bytes };
}

/** Opens a view in a new window. Returns the milliseconds until it is shown. */
export async function viewMs({ context, url }: Scene, path: string, shown: Shown): Promise<number> {
  const { page, ms } = await openView(context, url + path, shown);
  await page.close();
  return ms;
}

/** Shows one step after the other. Returns the median time in milliseconds. */
export async function stepMs({ context, url }: Scene, path: string, steps: number): Promise<number> {
  const { page } = await openView(context, url + path, { selector: '.changes caption' });
  const times: number[] = [];
  for (let step = 0; step < steps; step += 1) times.push(await evaluated<number>(page, 'probe.nextStep()'));
  await page.close();
  return percentile(times, 0.5);
}

/** Scrolls the rows of a tree by two rows in each frame. Returns the times between frames in milliseconds. */
export async function scrollMs({ context, url }: Scene, path: string, shown: Shown): Promise<readonly number[]> {
  const { page } = await openView(context, url + path, shown);
  await page.bringToFront();
  const times = await evaluated<number[]>(page, `probe.scroll('.grid-box', 120, 56)`);
  await page.close();
  return times;
}

/** Returns what a view of a run shows when it has read all plots, or that of `loss` with this many points. */
export function plotsShown(lossPoints?: number): Shown {
  if (lossPoints === undefined)
    return { selector: 'canvas[aria-label$=" points"]:not([aria-label$=" 0 points"])', count: METRIC_KEYS.length };
  return { selector: `canvas[aria-label^="loss:"][aria-label$=" ${lossPoints.toLocaleString('en')} points"]` };
}

export interface LivePoints {
  /** What a point costs the main thread, in milliseconds. */
  readonly busyMs: number;
  /** What the server sends for a point. */
  readonly bytes: number;
  /** From the ack of a point until it is shown, 95th percentile. */
  readonly shownMs: number;
}

const LIVE_POINTS = 20;

/** Logs points of `loss` from a step on, one at a time, while a window shows the plots of the run. */
export async function logLive(
  { server, client, browser }: Scene,
  run: { readonly id: string; points: number },
): Promise<LivePoints> {
  const [host = '', port] = server.address.split(':');
  await using proxy = await startTcpProxy({ host, port: Number(port) });
  const context = await browser.newContext();
  const { page } = await openView(context, `${proxy.url}/runs/${run.id}`, plotsShown());
  const log = async () => {
    const points = [{ key: 'loss', metricStep: BigInt(run.points), value: Math.random() }];
    await client.runs.logMetrics({ runId: run.id, points });
    run.points += 1;
  };
  const busySeconds = async () => (await page.metrics()).TaskDuration ?? Number.NaN;
  await pause(1);
  const before = { busy: await busySeconds(), bytes: proxy.delivered('toClient') };
  for (let point = 0; point < LIVE_POINTS; point += 1) {
    await log();
    await pause(0.2);
  }
  const bytes = (proxy.delivered('toClient') - before.bytes) / LIVE_POINTS;
  const busyMs = (((await busySeconds()) - before.busy) * 1000) / LIVE_POINTS;
  const times: number[] = [];
  for (let point = 0; point < LIVE_POINTS; point += 1) {
    const shown = evaluated<number>(
      page,
      `${seen(plotsShown(run.points + 1))}.then((ms) => performance.timeOrigin + ms)`,
    );
    await log();
    const acked = performance.timeOrigin + performance.now();
    times.push((await shown) - acked);
  }
  await context.close();
  return { busyMs, bytes, shownMs: percentile(times, 0.95) };
}

/** Points of each series that arrive at once: those of 20 seconds. */
const AT_ONCE = 20;

/**
 * Logs points of each series until a run has this many, and waits until a window has shown them. Returns its memory.
 */
export async function growRun(scene: Scene, runId: string, points: number, show: (points: number) => void) {
  const { client, browser, context, url } = scene;
  await logPoints(client, runId, 0, 1);
  const others = await context.pages();
  const { page } = await openView(context, `${url}/runs/${runId}`, plotsShown(1));
  for (const other of others) await other.close();
  for (let logged = 1; logged < points; logged += AT_ONCE) {
    show(logged);
    await logPoints(client, runId, logged, AT_ONCE);
    await evaluated(page, seen(plotsShown(logged + AT_ONCE)));
  }
  const session = await page.createCDPSession();
  await session.send('HeapProfiler.collectGarbage');
  const { JSHeapUsedSize: heapBytes = Number.NaN } = await page.metrics();
  return { heapBytes, processBytes: await browser.pageBytes() };
}
