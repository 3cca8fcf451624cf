/** anabranch/client/web of the packed package in Chromium, on a page of another origin than the server's. */
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import type { Browser, Page } from 'puppeteer-core';
import { rolldown } from 'rolldown';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, inject, it } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { type AnabranchClient, connectClient, openWriter, reasonOf } from '../../src/client/index.ts';
import { launchShell } from '../browser-faults/browsers.ts';
import { createDatabase, type TestDatabase } from '../support/database.ts';
import { type SpawnedServer, spawnServer } from '../support/spawned-server.ts';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.ts';

/** Values that the script of the page provides for the tests. Code within `evaluate` runs in the page. */
interface Window {
  readonly anabranch: typeof import('../../src/client/web/index.ts');
}

let pages: Server;
let browser: Browser;
let database: TestDatabase;
let server: SpawnedServer;
/** A proxy in front of the server, so that the address stays when the server is started again. */
let proxy: TcpProxy;
let node: AnabranchClient;
let page: Page;

beforeAll(async () => {
  pages = await servePages(await bundledClient());
  browser = await launchShell();
  database = await createDatabase('sqlite');
  server = await start();
  proxy = await startTcpProxy(server);
  node = connectClient({ address: proxy.url });
});
afterAll(async () => {
  node?.close();
  await proxy?.close();
  await server?.kill();
  await database?.drop();
  await browser?.close();
  pages?.close();
});
beforeEach(async () => {
  page = await pageOf('localhost');
});
afterEach(() => page.close());

/** Bundles the web client from the installed package, for a page that assigns it to its window. */
async function bundledClient(): Promise<string> {
  const input = path.join(inject('project'), 'page.js');
  await writeFile(input, "import * as anabranch from 'anabranch/client/web';\nglobalThis.anabranch = anabranch;\n");
  const bundle = await rolldown({ input, platform: 'browser', logLevel: 'silent' });
  const { output } = await bundle.generate({ format: 'esm' });
  await bundle.close();
  const [chunk] = output;
  expect([...chunk.imports, ...chunk.dynamicImports]).toEqual([]);
  expect(chunk.moduleIds.filter((id) => id.includes('node:') || id.includes('connect-node'))).toEqual([]);
  return chunk.code;
}

async function servePages(script: string): Promise<Server> {
  const serving = createServer((request, response) => {
    const [type, body] =
      request.url === '/page.js'
        ? ['text/javascript', script]
        : ['text/html', '<!doctype html><title>page</title><script type="module" src="/page.js"></script>'];
    response.writeHead(200, { 'content-type': type }).end(body);
  });
  serving.listen(0, '127.0.0.1');
  await once(serving, 'listening');
  return serving;
}

/** The page server has two names, and so two origins: only the one on `localhost` is allowed. */
function origin(host: 'localhost' | '127.0.0.1'): string {
  return `http://${host}:${(pages.address() as AddressInfo).port}`;
}

async function pageOf(host: 'localhost' | '127.0.0.1'): Promise<Page> {
  const page = await browser.newPage();
  await page.goto(origin(host));
  await page.waitForFunction(() => 'anabranch' in globalThis);
  return page;
}

function start(): Promise<SpawnedServer> {
  return spawnServer({ database: database.url, args: ['--allowed-origin', origin('localhost')] });
}

describe('anabranch/client/web in Chromium, on a page of an allowed origin', () => {
  it('A7, C2: writes with unary calls and reads every step in order', async () => {
    const read = await page.evaluate(async (address) => {
      const { connectClient, parseStepReference, readSteps, resolveStep } = (globalThis as unknown as Window).anabranch;
      const client = connectClient({ address });
      const { trajectory } = await client.trajectories.createTrajectory({ name: 'from a page' });
      const trajectoryId = trajectory!.id;
      for (const stepNumber of [0n, 1n, 2n]) {
        const states = [{ name: 'env', data: new TextEncoder().encode(`state ${stepNumber}`) }];
        await client.trajectories.appendStep({
          trajectoryId,
          step: { stepNumber, reward: Number(stepNumber), states },
        });
      }
      await client.trajectories.setTag({ trajectoryId, name: 'best', stepNumber: 1n });
      const tagged = await resolveStep(client, parseStepReference(`${trajectoryId}@best`));
      const { step } = await client.trajectories.getCheckpoint({ trajectoryId });
      const rewards: (number | undefined)[] = [];
      for await (const { step } of readSteps(client, { trajectoryId })) rewards.push(step.reward);
      return { trajectoryId, rewards, tagged: Number(tagged), state: new TextDecoder().decode(step!.states[0]!.data) };
    }, proxy.url);
    expect(read).toMatchObject({ rewards: [0, 1, 2], tagged: 1, state: 'state 2' });
    const { trajectory } = await node.trajectories.getTrajectory({ trajectoryId: read.trajectoryId });
    expect([trajectory?.name, trajectory?.nextStepNumber]).toEqual(['from a page', 3n]);
  });

  it('C2, R2: follows a trajectory while the server is killed and started again: each step once, until the seal', async () => {
    const { trajectory } = await node.trajectories.createTrajectory({});
    const trajectoryId = trajectory!.id;
    const writer = await openWriter(node, { trajectoryId });
    await writer.append({ reward: 0 });
    const seen = Promise.withResolvers<void>();
    await page.exposeFunction('sawTheFirstStep', () => seen.resolve());
    const following = page.evaluate(
      async ([address, trajectoryId]) => {
        const { connectClient, readSteps } = (globalThis as unknown as Window).anabranch;
        const { sawTheFirstStep } = globalThis as unknown as { sawTheFirstStep: () => Promise<void> };
        const numbers: number[] = [];
        for await (const { step } of readSteps(connectClient({ address }), { trajectoryId, follow: true })) {
          numbers.push(Number(step.stepNumber));
          if (numbers.length === 1) await sawTheFirstStep();
        }
        return numbers;
      },
      [proxy.url, trajectoryId] as const,
    );
    await seen.promise;
    await server.kill();
    server = await start();
    proxy.retarget(server);
    await writer.append({ reward: 1 });
    await writer.append({ reward: 2 });
    await writer.seal(Status.COMPLETED);
    await writer.close();
    expect(await following).toEqual([0, 1, 2]);
  });

  it('C2, M5: watches a run until it ends', async () => {
    const { run } = await node.runs.createRun({ initialStatus: Status.RUNNING });
    const runId = run!.id;
    await page.exposeFunction('sawTheRun', () => node.runs.completeRun({ runId }).then(() => undefined));
    const statuses = await page.evaluate(
      async ([address, runId]) => {
        const { connectClient, watchRun } = (globalThis as unknown as Window).anabranch;
        const { sawTheRun } = globalThis as unknown as { sawTheRun: () => Promise<void> };
        const statuses: number[] = [];
        for await (const { run } of watchRun(connectClient({ address }), { runId, untilTerminal: true })) {
          if (statuses.length === 0) await sawTheRun();
          statuses.push(run.status);
        }
        return statuses;
      },
      [proxy.url, runId] as const,
    );
    expect([statuses[0], statuses.at(-1)]).toEqual([Status.RUNNING, Status.COMPLETED]);
  });

  it('A7, C2: decodes the reason and the metadata of errors of unary calls and of streams', async () => {
    const refusals = await page.evaluate(
      async ([address, missing]) => {
        const { connectClient, errorMetadata, readSteps, reasonOf } = (globalThis as unknown as Window).anabranch;
        const client = connectClient({ address });
        const { trajectory } = await client.trajectories.createTrajectory({});
        const trajectoryId = trajectory!.id;
        const calls = [
          () => client.trajectories.getTrajectory({ trajectoryId: missing }),
          () => readSteps(client, { trajectoryId: missing }).next(),
          () => client.trajectories.appendStep({ trajectoryId, step: { stepNumber: 2n } }),
        ];
        const refusals: unknown[] = [];
        for (const call of calls) {
          await call().catch((error) =>
            refusals.push([reasonOf(error), String(errorMetadata(error).next_step_number)]),
          );
        }
        return refusals;
      },
      [proxy.url, randomUUID()] as const,
    );
    expect(refusals).toEqual([
      ['TRAJECTORY_NOT_FOUND', 'undefined'],
      ['TRAJECTORY_NOT_FOUND', 'undefined'],
      ['STEP_GAP', '0'],
    ]);
  });
});

describe('anabranch/client/web in Chromium, on a page of an origin that is not allowed', () => {
  it('A7: cannot read or change anything', async () => {
    const trajectoryId = randomUUID();
    await node.trajectories.createTrajectory({ trajectoryId });
    const foreign = await pageOf('127.0.0.1');
    const errors = await foreign.evaluate(
      async ([address, trajectoryId]) => {
        const { connectClient, readSteps } = (globalThis as unknown as Window).anabranch;
        const client = connectClient({ address });
        const calls = [
          () => client.trajectories.getTrajectory({ trajectoryId }),
          () => client.trajectories.deleteTrajectory({ trajectoryId }),
          () => readSteps(client, { trajectoryId, giveUpAfterMs: 1 }).next(),
          () => fetch(`${address}/healthz`),
        ];
        const errors: string[] = [];
        for (const call of calls) {
          const outcome = await call().then(
            () => 'answered',
            (error) => String(error),
          );
          errors.push(outcome);
        }
        return errors;
      },
      [proxy.url, trajectoryId] as const,
    );
    await foreign.close();
    for (const error of errors) expect(error).toContain('Failed to fetch');
    expect(errors).toHaveLength(4);
    expect(await node.trajectories.getTrajectory({ trajectoryId }).catch(reasonOf)).toMatchObject({
      trajectory: { id: trajectoryId },
    });
  });
});
