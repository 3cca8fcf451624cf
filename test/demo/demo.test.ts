import { existsSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import path from 'node:path';
import { stripVTControlCharacters } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { type AnabranchClient, connectClient, readSteps } from '../../src/client/index.ts';
import { CartPole } from '../../src/demo/cartpole.ts';
import type { Gains } from '../../src/demo/controller.ts';
import { act, isOver } from '../../src/demo/episode.ts';
import { MAIN_GAINS, NOISE, VARIANTS } from '../../src/demo/variant.ts';
import { runCli } from '../cli/run_cli.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';

/** An event of `demo --json`; 64-bit numbers are strings. */
interface Event {
  readonly event: string;
  readonly name: string;
  readonly [field: string]: unknown;
}

const SEED = 11;
const events = (stdout: string) =>
  stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Event);

describe.each(ENGINES)('anabranch demo, on a server on %s', (engine) => {
  let server: TestServer;
  let client: AnabranchClient;
  let told: Event[];
  let result: { main: { trajectoryId: string }; variants: { name: string; trajectoryId: string }[] };

  beforeAll(async () => {
    server = await startTestServer({ engine });
    client = connectClient({ address: server.url });
    const { code, stdout, stderr } = await runCli(['demo', '--seed', String(SEED), '--json', '--address', server.url]);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    told = events(stdout);
    result = told.at(-1) as unknown as typeof result;
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });

  const one = (event: string, name?: string) => {
    const found = told.find((each) => each.event === event && (name === undefined || each.name === name));
    if (found === undefined) throw new Error(`no event "${event}" of ${name ?? 'anybody'}`);
    return found;
  };

  /** What the variant's stream would have been without any kill, computed without the store. */
  function expected(gains: Gains, cart: CartPole): unknown[] {
    const steps: unknown[] = [];
    while (!isOver(cart)) {
      const { stepNumber, actions, observations, terminated, truncated } = act(cart, gains);
      steps.push([stepNumber, actions[0]?.content.json, observations[0]?.content.json, terminated, truncated]);
    }
    return steps;
  }

  async function stored(trajectoryId: string, startStepNumber: bigint): Promise<unknown[]> {
    const steps: unknown[] = [];
    for await (const { step } of readSteps(client, { trajectoryId, startStepNumber })) {
      const { stepNumber, actions, observations, terminated, truncated } = step;
      steps.push([stepNumber, actions[0]?.content?.json, observations[0]?.content?.json, terminated, truncated]);
    }
    return steps;
  }

  /** The cart after step 200 of the main line, played without the store. */
  function cartAtFork(): CartPole {
    const cart = CartPole.reset(SEED, NOISE);
    while (cart.state.steps < 200) act(cart, MAIN_GAINS);
    return cart;
  }

  it('streams the main line step by step, each step a checkpoint of the whole state', async () => {
    const { trajectoryId } = result.main;
    expect(await stored(trajectoryId, 1n)).toEqual(expected(MAIN_GAINS, CartPole.reset(SEED, NOISE)));
    const { trajectory } = await client.trajectories.getTrajectory({ trajectoryId });
    expect(trajectory).toMatchObject({ status: Status.COMPLETED, nextStepNumber: 501n, rewardSum: 500 });
    for await (const { step } of readSteps(client, { trajectoryId })) {
      expect(step.states.map(({ name, mediaType }) => [name, mediaType])).toEqual([['env', 'application/json']]);
    }
  });

  it('W13: stores of every variant, also of the one that was killed and resumed, what an undisturbed run would have made', async () => {
    expect(result.variants.map(({ name }) => name)).toEqual(VARIANTS.map(({ name }) => name));
    for (const { name, trajectoryId } of result.variants) {
      const gains = VARIANTS.find((variant) => variant.name === name)?.gains ?? MAIN_GAINS;
      expect(await stored(trajectoryId, 201n)).toEqual(expected(gains, cartAtFork()));
    }
  });

  it('branches at step 200, and runs the four at the same time', () => {
    const branched = told.flatMap((each, i) =>
      each.event === 'trajectory' && each.firstStepNumber === '201' ? [i] : [],
    );
    expect(branched).toHaveLength(4);
    const [, firstSealed = 0] = told.flatMap((each, i) => (each.event === 'sealed' ? [i] : []));
    expect(Math.max(...branched)).toBeLessThan(firstSealed);
  });

  it('at least one variant falls', async () => {
    const { trajectoryId } = result.variants.find(({ name }) => name === 'angle only') ?? { trajectoryId: '' };
    const { trajectory } = await client.trajectories.getTrajectory({ trajectoryId });
    expect(trajectory).toMatchObject({
      status: Status.FAILED,
      statusMessage: expect.stringMatching(/^fell at step \d+$/),
    });
  });

  it('D1, W13: the killed process had steps unacked; nothing acked was lost, and another went on where the store ends', () => {
    const { madeNextStepNumber, ackedNextStepNumber, storedNextStepNumber, pid } = one('killed', 'hasty');
    const [made, acked, kept] = [madeNextStepNumber, ackedNextStepNumber, storedNextStepNumber].map(Number);
    expect(made).toBeGreaterThan(acked ?? 0);
    expect(kept).toBeGreaterThanOrEqual(acked ?? 0);
    expect(kept).toBeLessThan(made ?? 0);
    const resumed = one('resumed', 'hasty');
    expect(Number(resumed.nextStepNumber)).toBeGreaterThanOrEqual(kept ?? 0);
    expect(resumed.pid).not.toBe(pid);
  });

  it('replays a variant from its step 250 in a fresh environment, bit for bit', () => {
    expect(one('replayed')).toMatchObject({ name: 'centring', fromStepNumber: '250', identicalSteps: 250 });
  });

  it('RD5: compares each variant with the main line', () => {
    for (const { name } of result.variants) {
      const comparison = one('compared', name).comparison as Record<string, unknown>;
      expect(comparison.sharedSteps).toBe('201');
      expect(Number((comparison.firstDifference as Record<string, unknown>).stepNumber)).toBeGreaterThan(200);
      expect(comparison.rewardSum).toBe(500);
      expect(comparison.rewardDifference).toBe(Number(comparison.otherRewardSum) - 500);
    }
  });

  it('when it is interrupted stops at once, says so, and leaves no process behind', async () => {
    const stop = new AbortController();
    const { code, stdout, stderr } = await runCli(['demo', '--json', '--address', server.url], {
      signal: stop.signal,
      onOutput: (text) => {
        if (text.includes('"event":"step","name":"hasty"')) stop.abort(); // its process is in full swing
      },
    });
    expect({ code, stderr }).toEqual({ code: 1, stderr: 'Interrupted.\n' });
    const started = events(stdout).find(({ event }) => event === 'started');
    expect(() => process.kill(Number(started?.pid), 0)).toThrow(/ESRCH/);
  });
});

describe('anabranch demo, without a server', () => {
  it('leaves a scratch database, draws the tree, and prints two commands that look at it', async () => {
    const { code, stdout, stderr } = await runCli(['demo']);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expect(stdout).toMatch(
      /played again from its step 250 in a fresh environment:\n.*every observation and state the same/,
    );
    expect(stdout).toMatch(
      /^CartPole-v1, seed 7 .* 501 +500 completed\n(?:├─@200 .*\n){3}└─@200 angle only .* failed\n/m,
    );
    for (const line of stdout.split('\n')) {
      if (!line.startsWith('  npm run') && !line.startsWith('Server ')) expect(line.length).toBeLessThanOrEqual(80);
    }
    const commands = [...stdout.matchAll(/^ {2}npm run -s anabranch -- (.*)$/gm)].map(([, args = '']) =>
      args.split(' '),
    );
    expect(commands.map(([name]) => name)).toEqual(['tree', 'tail']);
    const looks = [];
    for (const args of commands) looks.push(await runCli(args));
    expect(looks).toMatchObject([
      { code: 0, stdout: expect.stringContaining('├─@200 hasty') },
      { code: 0, stdout: expect.stringMatching(/── failed: fell at step \d+ ──/) },
    ]);
    await rm(path.dirname(scratchFile(stdout)), { recursive: true });
  });

  it('--no-keep removes the scratch database', async () => {
    const { code, stdout } = await runCli(['demo', '--no-keep']);
    expect(code).toBe(0);
    expect(stdout).not.toContain('Look around');
    expect(existsSync(path.dirname(scratchFile(stdout)))).toBe(false);
  });

  it('shows bars on a terminal while it runs, then says the same as in a pipe', async () => {
    const { code, stdout } = await runCli(['demo', '--no-keep'], { terminal: true });
    expect(code).toBe(0);
    const text = stripVTControlCharacters(stdout);
    expect(text).toMatch(/hasty +━+─+ \d{3} /);
    expect(text).toMatch(/└─@200 angle only .* failed/);
    expect(stdout.lastIndexOf('\u001b[?25h')).toBeGreaterThan(stdout.lastIndexOf('\u001b[?25l')); // the cursor is back
  });

  function scratchFile(stdout: string): string {
    return /^Server .* on sqlite:(.*)$/m.exec(stdout)?.[1] ?? 'no scratch database was named';
  }
});
