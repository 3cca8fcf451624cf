/** A trajectory and a run that grow while the page shows them, also through lost connections. */
import type { Page } from 'puppeteer-core';
import { expect } from 'vitest';
import type { AnabranchClient } from '../../src/client/index.ts';
import type { Random } from '../faults/random.ts';
import type { TcpProxy } from '../support/tcp-proxy.ts';
import { has, ROWS, textOf, textsOf, waitForNoText, waitForText } from './views.ts';

export class Growing {
  trajectoryId = '';
  runId = '';
  steps = 0;
  readonly #client: AnabranchClient;

  private constructor(client: AnabranchClient) {
    this.#client = client;
  }

  static async create(client: AnabranchClient, name: string): Promise<Growing> {
    const growing = new Growing(client);
    growing.trajectoryId = (await client.trajectories.createTrajectory({ name })).trajectory?.id ?? '';
    growing.runId = (await client.runs.createRun({ name: `run of ${name}`, mainTrajectory: {} })).run?.id ?? '';
    await growing.grow();
    return growing;
  }

  async grow(): Promise<void> {
    const { trajectories, runs } = this.#client;
    const stepNumber = BigInt(this.steps);
    this.steps += 1;
    await trajectories.appendStep({ trajectoryId: this.trajectoryId, step: { stepNumber, reward: 1 } });
    await runs.logMetrics({ runId: this.runId, points: [{ key: 'loss', metricStep: stepNumber, value: this.steps }] });
    await runs.updateRun({ runId: this.runId, updateMask: { paths: ['phase'] }, phase: `phase ${this.steps}` });
  }

  async branch(name: string): Promise<void> {
    await this.#client.trajectories.branchTrajectory({ trajectoryId: this.trajectoryId, stepNumber: 0n, name });
  }

  /** Waits until a window with the tree shows how far it has grown. */
  isInTree(page: Page): Promise<void> {
    return expect.poll(() => textOf(page, ROWS)).toMatch(new RegExp(`\\s${this.steps.toLocaleString('en')}\\s`));
  }

  /** Waits until a window with the run shows how far it has grown. */
  async isInRun(page: Page): Promise<void> {
    await waitForText(page, new RegExp(`^.*phase ${this.steps}\\b`, 'm'));
    await page.waitForSelector(`canvas[aria-label*=" ${this.steps.toLocaleString('en')} point"]`);
  }
}

/**
 * Cuts the connections of two windows at random places while both resources grow. Then both windows show what is
 * stored.
 */
export async function cutAndCompare(
  growing: Growing,
  windows: { readonly tree: Page; readonly run: Page },
  proxy: TcpProxy,
  random: Random,
  cuts: number,
): Promise<void> {
  await growing.isInTree(windows.tree);
  await growing.isInRun(windows.run);
  for (let cut = 0; cut < cuts; cut += 1) {
    if (random.next() < 0.1) proxy.cut('end');
    // The windows read something after each cut, so there is always something to cut.
    const lost = proxy.cutAfter(random.between(1, 3000), 'toClient');
    await growUntil(growing, lost);
  }
  await growing.grow();
  await growing.branch('last branch');
  await growing.isInTree(windows.tree);
  await windows.tree.waitForSelector(has(ROWS, 'last branch'));
  await growing.isInRun(windows.run);
  for (const page of [windows.tree, windows.run]) await waitForNoText(page, 'connection lost');
  await expect.poll(() => textsOf(windows.tree, `${ROWS} .name`)).toEqual(['cut', 'last branch']);
}

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
