/** The page in Chromium and Firefox, on both engines, while data is written, servers restart and connections break. */
import { execFile } from 'node:child_process';
import path from 'node:path';
import process from 'node:process';
import { promisify } from 'node:util';
import type { Browser, Page } from 'puppeteer-core';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { statusName } from '../../page/src/status_name.ts';
import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import { cutAndCompare, Growing } from '../browser/growing.ts';
import { has, ROWS, waitForNoText, waitForText } from '../browser/views.ts';
import { seededRandom } from '../faults/random.ts';
import { createDatabase, ENGINES, type Engine, type TestDatabase } from '../support/database.ts';
import { requireIntact } from '../support/intact.ts';
import { type SpawnedServer, spawnServer } from '../support/spawned-server.ts';
import { startTcpProxy } from '../support/tcp-proxy.ts';
import { BROWSERS, type BrowserName, launchBrowser, openTab } from './browsers.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
const MAIN = path.join(ROOT, 'src/main.ts');
const run = promisify(execFile);
const PATIENCE = { timeout: 250_000, interval: 100 };

const PAIRS: readonly (readonly [BrowserName, Engine])[] = BROWSERS.flatMap((name) =>
  ENGINES.map((engine) => [name, engine] as const),
);
const CUTS = 200;

beforeAll(async () => {
  await run(process.execPath, [path.join(ROOT, 'page/build.ts')]);
});

/** Rows of the tree as the page shows them: name, end and status. */
function shownRows(page: Page): Promise<string[]> {
  return page.$$eval(ROWS, (rows) =>
    rows.map((row) => {
      const cells = [...row.querySelectorAll('[role=gridcell]')].map((cell) => cell.textContent?.trim() ?? '');
      return [row.querySelector('.name')?.textContent, cells[1], cells[4]].join(' | ');
    }),
  );
}

/** The same rows as the API returns them. */
async function storedRows(client: AnabranchClient, trajectoryId: string): Promise<string[]> {
  const { nodes } = await client.trajectories.getTree({ trajectoryId });
  return nodes.flatMap(({ trajectory }) =>
    trajectory === undefined
      ? []
      : [trajectory.name, trajectory.nextStepNumber.toLocaleString('en'), statusName(trajectory.status)].join(' | '),
  );
}

async function expectStored(page: Page, client: AnabranchClient, trajectoryId: string): Promise<void> {
  const stored = (await storedRows(client, trajectoryId)).sort();
  await expect.poll(async () => (await shownRows(page)).sort(), PATIENCE).toEqual(stored);
}

describe.each(PAIRS)('the page in %s, on %s', (name, engine) => {
  let database: TestDatabase;
  let server: SpawnedServer;
  let client: AnabranchClient;
  let browser: Browser;

  beforeAll(async () => {
    database = await createDatabase(engine);
    server = await spawnServer({ database: database.url });
    client = connectClient({ address: server.url });
    browser = await launchBrowser(name);
  });
  afterAll(async () => {
    await browser?.close();
    client?.close();
    await server?.kill();
    await database?.drop();
  });
  afterEach(() => requireIntact(client));

  it('shows the demo while it runs: four variants grow, one is killed and resumes, and at the end it is as stored', async () => {
    const known = new Set((await roots(client)).map(({ id }) => id));
    const demo = run(process.execPath, [MAIN, 'demo', '--address', server.url], { timeout: 280_000 });
    const isNew = async () => (await roots(client)).find(({ id }) => !known.has(id))?.id ?? '';
    await expect.poll(isNew, PATIENCE).not.toBe('');
    const trajectoryId = await isNew();
    const faults: string[] = [];
    const page = await openTab(browser, `${server.url}/trees/${trajectoryId}`, faults);
    await page.waitForSelector(ROWS);
    await expect.poll(async () => (await shownRows(page)).length, PATIENCE).toBe(5);
    await demo;
    await expectStored(page, client, trajectoryId);
    const failed = async () => (await shownRows(page)).filter((row) => row.includes('failed'));
    await expect.poll(failed, PATIENCE).toHaveLength(2);
    expect(faults).toEqual([]);
    await page.close();
  });

  it('shows that a run which is open was deleted', async () => {
    const { run } = await client.runs.createRun({ name: `short-lived` });
    const runId = run?.id ?? '';
    const faults: string[] = [];
    const page = await openTab(browser, `${server.url}/runs/${runId}`, faults);
    await page.waitForSelector(has('h1', 'short-lived'));
    await client.runs.cancelRun({ runId });
    await client.runs.deleteRun({ runId });
    await waitForText(page, 'deleted');
    expect(faults).toEqual([]);
    await page.close();
  });

  it('keeps what it shows while the server restarts, and then continues', async () => {
    const { trajectory } = await client.trajectories.createTrajectory({ name: 'through a restart' });
    const trajectoryId = trajectory?.id ?? '';
    const append = (stepNumber: bigint) => client.trajectories.appendStep({ trajectoryId, step: { stepNumber } });
    await append(0n);
    const faults: string[] = [];
    const page = await openTab(browser, `${server.url}/trees/${trajectoryId}`, faults);
    await expectStored(page, client, trajectoryId);
    const listen = `${server.host}:${server.port}`;
    await server.kill();
    await waitForText(page, 'connection lost');
    await expect.poll(() => shownRows(page), PATIENCE).toHaveLength(1);
    server = await spawnServer({ database: database.url, listen });
    client.close();
    client = connectClient({ address: server.url });
    await append(1n);
    await expectStored(page, client, trajectoryId);
    await waitForNoText(page, 'connection lost');
    expect(faults).toEqual([]);
    await page.close();
  });

  const random = seededRandom();
  it(
    `shows what is stored after ${CUTS} random disconnects (seed ${random.seed})`,
    async () => {
      await using proxy = await startTcpProxy(server);
      const growing = await Growing.create(client, 'cut');
      const faults: string[] = [];
      const tree = await openTab(browser, `${proxy.url}/trees/${growing.trajectoryId}`, faults);
      const run = await openTab(browser, `${proxy.url}/runs/${growing.runId}`, faults);
      await cutAndCompare(growing, { tree, run }, proxy, random, CUTS);
      expect(faults).toEqual([]);
      await tree.close();
      await run.close();
    },
    120_000 + CUTS * 5_000,
  );
});

async function roots(client: AnabranchClient) {
  return (await client.trajectories.listTrajectories({ rootsOnly: true, withoutRun: true })).trajectories;
}
