/** The step view: contents, marks, tokens, and states against those of another branch. */
import type { Page } from 'puppeteer-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { uploadState } from '../../src/client/index.ts';
import { startTcpProxy } from '../support/tcp-proxy.ts';
import { openPageScene, type PageScene } from './page_scene.ts';
import {
  accessibilityFaults,
  addressOf,
  choose,
  countOf,
  has,
  openPage,
  ROWS,
  takeScreenshot,
  textOf,
  textsOf,
  waitForText,
  waitForWhole,
} from './views.ts';

let scene: PageScene;
beforeAll(async () => {
  scene = await openPageScene();
});
afterAll(() => scene?.close());

/** A PNG of one pixel. */
const PIXEL = Buffer.from(
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==',
  'base64',
);

function stateOf(value: object): Buffer {
  return Buffer.from(JSON.stringify(value));
}

async function show(page: Page, view: string): Promise<void> {
  await page.goto(scene.url + view);
  await page.waitForSelector('.step-body');
}

describe('states', () => {
  it('are compared with the checkpoint before, or with another branch, as the address says', async () => {
    const { trajectories } = scene.client;
    const { trajectory } = await trajectories.createTrajectory({ name: 'trunk' });
    const trajectoryId = trajectory?.id ?? '';
    const words = 'The quick brown fox jumps over the lazy dog, and nobody minds that at all.';
    const put = (id: string, stepNumber: bigint, state: object) =>
      trajectories.appendStep({
        trajectoryId: id,
        step: { stepNumber, states: [{ data: stateOf(state), mediaType: 'application/json' }] },
      });
    await put(trajectoryId, 0n, { x: 0, note: words });
    await put(trajectoryId, 1n, { x: 1, note: words });
    const made = await trajectories.branchTrajectory({ trajectoryId, stepNumber: 0n, name: 'branch' });
    const branchId = made.trajectory?.id ?? '';
    await put(branchId, 1n, { x: 5, note: words.replace('lazy', 'sleepy'), extra: '<i>' });
    const { page, faults } = await openPage(scene.context);
    await show(page, `/trees/${trajectoryId}?at=${branchId}&step=1`);
    await waitForText(page, '3 changes since step 0');
    await choose(page, `${has('label', 'Compare states with')} select`, 'trunk');
    await waitForText(page, '3 changes from trunk, step 1');
    const row = (path: string) => has('.changes tr', path);
    await waitForText(page, /\/x\s+1\s+5/, row('/x'));
    await waitForText(page, /^lazy$/, `${row('/note')} del`);
    await waitForText(page, /^sleepy$/, `${row('/note')} ins`);
    await waitForText(page, /^"<i>"$/, `${row('/extra')} ins`);
    expect(await accessibilityFaults(page)).toEqual([]);
    await takeScreenshot(page, 'step-against-light-1500');
    await page.reload();
    await waitForText(page, '3 changes from trunk, step 1');
    await choose(page, `${has('label', 'Compare states with')} select`, 'the checkpoint before');
    await waitForText(page, '3 changes since step 0');
    expect(faults).toEqual([]);
    await page.close();
  });
});

describe('a step', () => {
  it('stays, marked as old, with all that belongs to it until another one is read', async () => {
    await using proxy = await startTcpProxy(scene.target);
    const { trajectories } = scene.client;
    const trajectoryId = (await trajectories.createTrajectory({ name: 'slowly read' })).trajectory?.id ?? '';
    for (const stepNumber of [0n, 1n]) {
      const states = [{ data: stateOf({ x: Number(stepNumber) }), mediaType: 'application/json' }];
      await trajectories.appendStep({ trajectoryId, step: { stepNumber, reward: 10 + Number(stepNumber), states } });
    }
    const branch = await trajectories.branchTrajectory({ trajectoryId, stepNumber: 0n, name: 'other owner' });
    const { page, faults } = await openPage(scene.context);
    await page.goto(`${proxy.url}/trees/${trajectoryId}?step=1`);
    await waitForText(page, '1 change since step 0');
    proxy.mute();
    await page.locator(has(ROWS, 'other owner')).click();
    const old = '.step-body[aria-busy=true]';
    await waitForText(page, /Reward\s+11/, `${old} .facts`);
    expect(await textOf(page, `${old} .facts`)).not.toContain('Shared with');
    await page.waitForSelector(`${old} .states[aria-busy=true]`);
    await proxy.release();
    await waitForText(page, /Reward\s+10.*Shared with\s+slowly read/s, '.step-body[aria-busy=false] .facts');
    await waitForWhole(page);
    expect(new URL(await addressOf(page)).searchParams.get('at')).toBe(branch.trajectory?.id);
    expect(faults).toEqual([]);
    await page.close();
  });

  it('shows the numbers of tensors, wherever they are stored, and the plot offers them', async () => {
    const { trajectories } = scene.client;
    const trajectoryId = (await trajectories.createTrajectory({ name: 'arrays' })).trajectory?.id ?? '';
    const stored = Float32Array.from({ length: 4096 }, (_, i) => i / 8);
    const stateDigest = await uploadState(scene.client, new Uint8Array(stored.buffer));
    for (const stepNumber of [0n, 1n]) {
      const small = { dtype: '<f4', shape: [2, 2], data: new Uint8Array(Float32Array.of(0.1, 2, 3, 4).buffer) };
      const observations = [
        { type: 'small', content: { tensor: small } },
        { type: 'large', content: { tensor: { dtype: '<f4', shape: [4096], stateDigest } } },
        { type: 'pixels', content: { tensor: { dtype: '|u1', shape: [4097], data: new Uint8Array(4097) } } },
      ];
      await trajectories.appendStep({ trajectoryId, step: { stepNumber, observations } });
    }
    const { page, faults } = await openPage(scene.context);
    await show(page, `/trees/${trajectoryId}?step=1`);
    await waitForText(page, 'tensor <f4 [2, 2]');
    await waitForText(page, '[[0.1, 2],\n [3, 4]]');
    await waitForText(page, '[0, 0.125, 0.25, ');
    await waitForText(page, 'tensor |u1 [4097]');
    await choose(page, `${has('label', 'plotted value')} select`, 'observation /small/0/1');
    expect(new URL(await addressOf(page)).searchParams.get('value')).toBe('observation:/small/0/1');
    await show(page, `/trees/${trajectoryId}?step=1&value=observation:/nothing`);
    await waitForText(page, 'No step has this value.');
    expect(faults).toEqual([]);
    await page.close();
  });

  it('that cannot be read while the connection is lost is read with its states after the reconnect', async () => {
    await using proxy = await startTcpProxy(scene.target);
    const { trajectories } = scene.client;
    const trajectoryId = (await trajectories.createTrajectory({ name: 'read again' })).trajectory?.id ?? '';
    for (const stepNumber of [0n, 1n, 2n]) {
      const states = [{ data: stateOf({ x: Number(stepNumber) }), mediaType: 'application/json' }];
      await trajectories.appendStep({ trajectoryId, step: { stepNumber, reward: 10 + Number(stepNumber), states } });
    }
    const { page, faults } = await openPage(scene.context);
    await page.goto(`${proxy.url}/trees/${trajectoryId}?step=2`);
    await waitForText(page, '1 change since step 1');
    // Nobody listens at port 1.
    proxy.retarget({ ...scene.target, port: 1 });
    proxy.cut();
    await waitForText(page, 'connection lost');
    await page.keyboard.press('p');
    await page.waitForSelector('.step .problem');
    proxy.retarget(scene.target);
    await waitForText(page, /Reward\s+11/, '.step-body .facts');
    await waitForText(page, '1 change since step 0');
    expect(await countOf(page, '.problem')).toBe(0);
    expect(faults).toEqual([]);
    await page.close();
  });

  it('shows an image after one that cannot be shown', async () => {
    const { trajectories } = scene.client;
    const trajectoryId = (await trajectories.createTrajectory({ name: 'images' })).trajectory?.id ?? '';
    for (const [stepNumber, data] of [Buffer.from('no image'), PIXEL].entries()) {
      const observations = [{ content: { data, mediaType: 'image/png' } }];
      await trajectories.appendStep({ trajectoryId, step: { stepNumber: BigInt(stepNumber), observations } });
    }
    const { page, faults } = await openPage(scene.context);
    await show(page, `/trees/${trajectoryId}?step=0`);
    await waitForText(page, 'The image cannot be shown.');
    await page.keyboard.press('n');
    await page.waitForSelector('.image img');
    expect(faults).toEqual([]);
    await page.close();
  });

  it('shows tokens and log-probabilities that are stored as states, as the Python client stores long ones', async () => {
    const { trajectories } = scene.client;
    const trajectoryId = (await trajectories.createTrajectory({ name: 'long replies' })).trajectory?.id ?? '';
    const [ids, logprobs] = [Int32Array.of(7, 8, 9), Float32Array.of(-0.01, -3, -0.02)];
    const [tokenIdsState, stateDigest] = await Promise.all(
      [ids, logprobs].map(({ buffer }) => uploadState(scene.client, new Uint8Array(buffer))),
    );
    const text = `one two three${'\n'.repeat(20)}`;
    const step = {
      stepNumber: 0n,
      actions: [
        { type: 'code', content: { text }, tokenIdsState },
        { type: 'anabranch.logprobs', content: { tensor: { dtype: '<f4', shape: [3], stateDigest } } },
      ],
      observations: [{ content: { text: 'a line\n'.repeat(24) } }],
    };
    await trajectories.appendStep({ trajectoryId, step });
    for (const stepNumber of [1n, 2n]) {
      const data = stateOf({ x: Number(stepNumber) });
      await trajectories.appendStep({
        trajectoryId,
        step: { ...step, stepNumber, states: [{ data, mediaType: 'application/json' }] },
      });
    }
    const { page, faults } = await openPage(scene.context);
    await show(page, `/trees/${trajectoryId}?step=2`);
    const words = async () => (await textsOf(page, '.tokens span')).map((word) => word.trim());
    await expect.poll(words).toEqual(['one', 'two', 'three']);
    expect(await textsOf(page, '.tokens .unlikely')).toEqual([expect.stringContaining('two')]);
    expect(await textOf(page, '.step-body')).toMatch(/\b3 tokens/);
    expect(await textOf(page, '.step-body')).not.toContain('anabranch.logprobs');
    // What is far below in the step does not make the page itself longer.
    await waitForText(page, '1 change since step 1');
    expect(await page.$eval('html', (html) => html.scrollHeight - html.clientHeight)).toBe(0);
    expect(faults).toEqual([]);
    await page.close();
  });

  it('shows actions with their answers, clicks on what was seen, and tokens by more than their colour', async () => {
    const { trajectories } = scene.client;
    const { trajectory } = await trajectories.createTrajectory({ name: 'computer use' });
    const trajectoryId = trajectory?.id ?? '';
    const image = { content: { data: PIXEL, mediaType: 'image/png' } };
    await trajectories.appendStep({ trajectoryId, step: { stepNumber: 0n, observations: [image] } });
    const step = {
      stepNumber: 1n,
      actions: [
        { type: 'tool', name: 'first', callId: 'a', content: { json: '{"x": 0.5, "y": 0.5}' } },
        { type: 'tool', name: 'second', callId: 'b', content: { json: '{"path": [[0, 0], [1, 1]]}' } },
        { type: 'text', content: { text: 'sure perhaps' }, tokenIds: [1, 2], logprobs: [-0.01, -3] },
      ],
      observations: [
        { callId: 'b', content: { text: 'answers b' } },
        { callId: 'a', content: { text: 'answers a' } },
        { content: { text: 'answers nobody' } },
      ],
    };
    await trajectories.appendStep({ trajectoryId, step });
    const { page, faults } = await openPage(scene.context);
    await show(page, `/trees/${trajectoryId}?step=1`);
    await expect.poll(() => countOf(page, '.image svg')).toBe(2);
    await expect
      .poll(() => textsOf(page, '.step-body > section'))
      .toEqual([
        expect.stringMatching(/first.*answers a/s),
        expect.stringMatching(/second.*answers b/s),
        expect.stringContaining('sure'),
        expect.stringContaining('answers nobody'),
      ]);
    const marks = () => page.$$eval('.image svg', (all) => all.map((each) => each.getAttribute('aria-label')));
    await expect.poll(marks).toEqual(['the action, at 0.5, 0.5', 'the action, at 0, 0 to 1, 1']);
    await expect.poll(() => textsOf(page, '.tokens .unlikely')).toEqual([expect.stringContaining('perhaps')]);
    expect(await accessibilityFaults(page)).toEqual([]);
    await takeScreenshot(page, 'step-content-light-1500');
    expect(faults).toEqual([]);
    await page.close();
  });
});
