/** The page in Chromium and Firefox, on both engines, while data is written, servers restart and connections break. */
import { execFile } from 'node:child_process';
import path from 'node:path';
import process from 'node:process';
import { promisify } from 'node:util';
import type { Browser, Page } from 'puppeteer-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { statusName } from '../../page/src/status_name.ts';
import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import { seededRandom } from '../faults/random.ts';
import { createDatabase, ENGINES, type Engine, type TestDatabase } from '../support/database.ts';
import { dose } from '../support/dose.ts';
import { type SpawnedServer, spawnServer } from '../support/spawned-server.ts';
import { startTcpProxy } from '../support/tcp-proxy.ts';
import { BROWSERS, type BrowserName, launchBrowser, openTab } from './browsers.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
const MAIN = path.join(ROOT, 'src/main.ts');
const run = promisify(execFile);
const PATIENCE = { timeout: 250_000, interval: 100 };

beforeAll(async () => {
  await run(process.execPath, [path.join(ROOT, 'page/build.ts')]);
});

/** Rows of the tree as the page shows them: name, end and status. */
function shownRows(page: Page): Promise<string[]> {
  return page.$$eval('[role=row]:not(.grid-head)', (rows) =>
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

describe.each(ENGINES)('the page, on %s', (engine: Engine) => {
  let database: TestDatabase;
  let server: SpawnedServer;
  let client: AnabranchClient;

  beforeAll(async () => {
    database = await createDatabase(engine);
    server = await spawnServer({ database: database.url });
    client = connectClient({ address: server.url });
  });
  afterAll(async () => {
    client?.close();
    await server?.kill();
    await database?.drop();
  });

  describe.each(BROWSERS)('in %s', (name: BrowserName) => {
    let browser: Browser;
    beforeAll(async () => {
      browser = await launchBrowser(name);
    });
    afterAll(() => browser?.close());

    it('shows the demo while it runs: four variants grow, one is killed and resumes, and at the end it is as stored', async () => {
      const known = new Set((await roots(client)).map(({ id }) => id));
      const demo = run(process.execPath, [MAIN, 'demo', '--address', server.url], { timeout: 280_000 });
      const isNew = async () => (await roots(client)).find(({ id }) => !known.has(id))?.id ?? '';
      await expect.poll(isNew, PATIENCE).not.toBe('');
      const trajectoryId = await isNew();
      const faults: string[] = [];
      const page = await openTab(browser, `${server.url}/trees/${trajectoryId}`, faults);
      await page.waitForSelector('[role=row]:not(.grid-head)');
      await expect.poll(async () => (await shownRows(page)).length, PATIENCE).toBe(5);
      await demo;
      await expectStored(page, client, trajectoryId);
      expect((await shownRows(page)).filter((row) => row.includes('failed'))).toHaveLength(2);
      expect(faults).toEqual([]);
      await page.close();
    });

    it('shows that a run which is open was deleted', async () => {
      const { run } = await client.runs.createRun({ name: `short-lived in ${name}` });
      const runId = run?.id ?? '';
      const faults: string[] = [];
      const page = await openTab(browser, `${server.url}/runs/${runId}`, faults);
      await page.waitForFunction(`document.querySelector('h1')?.textContent.includes('short-lived')`);
      await client.runs.cancelRun({ runId });
      await client.runs.deleteRun({ runId });
      await page.waitForFunction(`/deleted|no run|not found|connection lost/i.test(document.body.textContent)`);
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
      await page.waitForFunction(`document.body.textContent.includes('connection lost')`);
      expect(await shownRows(page)).toHaveLength(1);
      server = await spawnServer({ database: database.url, listen });
      client.close();
      client = connectClient({ address: server.url });
      await append(1n);
      await expectStored(page, client, trajectoryId);
      await page.waitForFunction(`!document.body.textContent.includes('connection lost')`);
      expect(faults).toEqual([]);
      await page.close();
    });

    it('shows what is stored after random disconnects', async () => {
      const cuts = dose(20, 200);
      const random = seededRandom();
      process.stdout.write(`cuts of ${name} on ${engine}: seed ${random.seed}\n`);
      await using proxy = await startTcpProxy(server);
      const { trajectory } = await client.trajectories.createTrajectory({ name: 'through cuts' });
      const trajectoryId = trajectory?.id ?? '';
      let next = 0n;
      const append = async () => {
        await client.trajectories.appendStep({ trajectoryId, step: { stepNumber: next, reward: 1 } });
        next += 1n;
      };
      await append();
      const faults: string[] = [];
      const page = await openTab(browser, `${proxy.url}/trees/${trajectoryId}`, faults);
      await page.waitForSelector('[role=row]:not(.grid-head)');
      for (let cut = 0; cut < cuts; cut += 1) {
        for (let steps = random.between(0, 3); steps >= 0; steps -= 1) await append();
        if (random.next() < 0.1) {
          await client.trajectories.branchTrajectory({ trajectoryId, stepNumber: next - 1n, name: `branch ${cut}` });
        }
        const accepted = proxy.accepted;
        proxy.cut(random.next() < 0.5 ? 'reset' : 'end');
        // The next cut meets a connection: the page has reconnected.
        await expect.poll(() => proxy.accepted, PATIENCE).toBeGreaterThan(accepted);
      }
      await expectStored(page, client, trajectoryId);
      await page.waitForFunction(`!document.body.textContent.includes('connection lost')`);
      expect(faults).toEqual([]);
      await page.close();
    });
  });
});

async function roots(client: AnabranchClient) {
  return (await client.trajectories.listTrajectories({ rootsOnly: true, withoutRun: true })).trajectories;
}
