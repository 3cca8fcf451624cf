import { readFileSync } from 'node:fs';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { stripVTControlCharacters } from 'node:util';
import { timestampMs } from '@bufbuild/protobuf/wkt';
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { type AnabranchClient, connectClient, readSteps } from '../../src/client/index.ts';
import { CartPole, type Gains } from '../../src/demo/cartpole.ts';
import { act, isOver, NOISE } from '../../src/demo/episode.ts';
import { MAIN_GAINS, VARIANTS } from '../../src/demo/variants.ts';
import { runCli } from '../cli/run_cli.ts';
import { verifiedLinesIn } from '../store/archived.ts';
import { createDatabase, ON_POSTGRES, type TestDatabase } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';

/** An event of `demo --json`; 64-bit numbers are strings. */
interface Event {
  readonly event: string;
  readonly name: string;
  readonly [field: string]: unknown;
}

const SEED = 11;
const DEFAULT_SEED = 7;
const events = (stdout: string) =>
  stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Event);

/** The stream of the variant without any kill, computed without the store. */
function expected(gains: Gains, cart: CartPole): unknown[] {
  const steps: unknown[] = [];
  while (!isOver(cart)) {
    const { stepNumber, actions, observations, terminated, truncated } = act(cart, gains);
    steps.push([stepNumber, actions[0]?.content.json, observations[0]?.content.json, terminated, truncated]);
  }
  return steps;
}

/** The stream as the store returns it. */
async function stored(client: AnabranchClient, trajectoryId: string, startStepNumber: bigint): Promise<unknown[]> {
  const steps: unknown[] = [];
  for await (const { step } of readSteps(client, { trajectoryId, startStepNumber })) {
    const { stepNumber, actions, observations, terminated, truncated } = step;
    steps.push([stepNumber, actions[0]?.content?.json, observations[0]?.content?.json, terminated, truncated]);
  }
  return steps;
}

/** The cart after step 200 of the main line, computed without the store. */
function cartAtFork(seed: number): CartPole {
  const cart = CartPole.reset(seed, NOISE);
  while (cart.state.steps < 200) act(cart, MAIN_GAINS);
  return cart;
}

function gainsOf(variant: string): Gains {
  return VARIANTS.find(({ name }) => name === variant)?.gains ?? MAIN_GAINS;
}

describe.runIf(ON_POSTGRES)('anabranch demo, on a server on Postgres', { timeout: 240_000 }, () => {
  let server: TestServer;
  let client: AnabranchClient;
  let told: Event[];
  let result: { main: { trajectoryId: string }; variants: { name: string; trajectoryId: string }[] };

  beforeAll(async () => {
    server = await startTestServer({ engine: 'postgres' });
    client = connectClient({ address: server.url });
    const { code, stdout, stderr } = await runCli(['demo', '--seed', String(SEED), '--json', '--address', server.url]);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    told = events(stdout);
    result = told.at(-1) as unknown as typeof result;
  }, 240_000);
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });

  const one = (event: string, name?: string) => {
    const found = told.find((each) => each.event === event && (name === undefined || each.name === name));
    if (found === undefined) throw new Error(`no event "${event}" of ${name ?? 'anybody'}`);
    return found;
  };

  it('streams the main line step by step, each step a checkpoint of the whole state', async () => {
    const { trajectoryId } = result.main;
    expect(await stored(client, trajectoryId, 1n)).toEqual(expected(MAIN_GAINS, CartPole.reset(SEED, NOISE)));
    const { trajectory } = await client.trajectories.getTrajectory({ trajectoryId });
    expect(trajectory).toMatchObject({ status: Status.COMPLETED, nextStepNumber: 501n, rewardSum: 500 });
    for await (const { step } of readSteps(client, { trajectoryId })) {
      expect(step.states.map(({ name, mediaType }) => [name, mediaType])).toEqual([['env', 'application/json']]);
    }
  });

  it('W13: stores of every variant, including the one killed and resumed, what an undisturbed run would have produced', async () => {
    expect(result.variants.map(({ name }) => name)).toEqual(VARIANTS.map(({ name }) => name));
    for (const { name, trajectoryId } of result.variants) {
      expect(await stored(client, trajectoryId, 201n)).toEqual(expected(gainsOf(name), cartAtFork(SEED)));
    }
  });

  it('branches at step 200, and runs four branches concurrently', () => {
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

  it('D1, W13: the killed process had unacked steps; no acked step was lost, and another process continued at the stored end', () => {
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

  describe('trains', () => {
    interface Training {
      readonly runId: string;
      readonly killedRolloutId: string;
      readonly summaries: { readonly values: string[]; readonly rolloutCount: string; readonly judgedCount: string }[];
    }
    const training = () => told.at(-1)?.training as Training;

    it('four processes play 20 rollouts, each of them once', async () => {
      expect(new Set(told.filter(({ event }) => event === 'worker').map(({ pid }) => pid)).size).toBe(4);
      const { rollouts } = await client.rollouts.listRollouts({ runId: training().runId, pageSize: 100 });
      expect(rollouts.map(({ status }) => status)).toEqual(Array.from({ length: 20 }, () => Status.COMPLETED));
      expect(rollouts.map(({ groupNumber, number }) => `${groupNumber}/${number}`).join(' ')).toBe(
        '0/0 0/1 0/2 0/3 1/0 1/1 1/2 1/3 0/0 0/1 0/2 0/3 1/0 1/1 1/2 1/3 0/0 0/1 0/2 0/3',
      );
      const { run } = await client.runs.getRun({ runId: training().runId });
      expect(run).toMatchObject({ status: Status.COMPLETED, experimentName: 'cartpole-training' });
    });

    it('Q2: the queue of each stage is closed before the stage ends, and the workers exit by themselves', async () => {
      const { runId } = training();
      const { stages } = await client.runs.listStages({ runId });
      expect(stages).toHaveLength(3);
      for (const { queueCloseTime, endTime } of stages) {
        expect(timestampMs(queueCloseTime!)).toBeLessThan(timestampMs(endTime!));
      }
      const { environments } = await client.rollouts.listEnvironments({ runId });
      const statuses = environments.map(({ status }) => status).toSorted((a, b) => a - b);
      expect(statuses).toEqual([Status.COMPLETED, Status.COMPLETED, Status.COMPLETED, Status.FAILED]);
    });

    it('Q3: the rollout of the killed worker is claimed again after its lease has expired, and is played by another', async () => {
      const { rolloutId, turns } = one('worker_killed', 'worker-1');
      expect(rolloutId).toBe(training().killedRolloutId);
      const again = one('claimed_again');
      expect(again).toMatchObject({ rolloutId, attempt: 2 });
      const { rollout, attempts } = await client.rollouts.getRollout({ rolloutId: String(rolloutId) });
      expect(rollout?.status).toBe(Status.COMPLETED);
      expect(attempts[0]).toMatchObject({ number: 1, status: Status.FAILED, workerId: 'worker-1' });
      expect(attempts[1]).toMatchObject({ number: 2, workerId: again.name });
      expect(attempts.at(-1)?.status).toBe(Status.COMPLETED);
      // The work of the killed worker is still visible: the root and its turns.
      const { trajectory } = await client.trajectories.getTrajectory({ trajectoryId: attempts[0]?.trajectoryId ?? '' });
      expect(trajectory).toMatchObject({ status: Status.FAILED, nextStepNumber: BigInt(Number(turns) + 1) });
    });

    it('K-C1: the turns of every rollout are those of its own episode and policy, as computed without the store', async () => {
      const { rollouts } = await client.rollouts.listRollouts({
        runId: training().runId,
        pageSize: 100,
        view: View.FULL,
      });
      for (const { taskId, inputJson, trajectoryId, reward, success, turns } of rollouts) {
        const { task } = await client.rollouts.getTask({ taskId });
        const { seed } = JSON.parse(task?.inputJson ?? '') as { seed: number };
        const { gains } = JSON.parse(inputJson) as { gains: Gains };
        const cart = CartPole.reset(seed, NOISE);
        const played: unknown[] = [];
        while (!isOver(cart) && cart.state.steps < 200) {
          const { stepNumber, actions, observations, terminated, truncated } = act(cart, gains);
          played.push([stepNumber, actions[0]?.content.json, observations[0]?.content.json, terminated, truncated]);
        }
        expect(await stored(client, trajectoryId, 1n)).toEqual(played);
        expect({ turns, reward, success }).toEqual({
          turns: BigInt(played.length),
          reward: played.length,
          success: !cart.terminated,
        });
      }
    });

    it('M2: shows progress that rises to 100 %, and the remaining time', () => {
      const progress = told.filter(({ event }) => event === 'progress');
      const done = progress.map(({ rolloutsDone }) => Number(rolloutsDone));
      expect(done).toEqual(done.toSorted((a, b) => a - b));
      expect(progress.some(({ remainingSeconds }) => Number(remainingSeconds) > 0)).toBe(true);
      expect(progress.at(-1)).toMatchObject({ percent: 100, rolloutsDone: '20', rolloutsExpected: '20' });
    });

    it('M3: prints a summary for each policy', () => {
      expect(
        training().summaries.map(({ values, rolloutCount, judgedCount }) => [values[0], rolloutCount, judgedCount]),
      ).toEqual([
        ['0', '8', '8'],
        ['1', '8', '8'],
        ['2', '4', '4'],
      ]);
    });
  });

  it('V7, F-19: the database of the demo moves to SQLite and back, and is the same', async () => {
    const first = server.database;
    await using second = await createDatabase('sqlite');
    await using third = await createDatabase('postgres');
    const before = await verifiedLinesIn(first);
    expect(before.filter((line) => line.includes('"record":"trajectory_end"')).length).toBeGreaterThan(3);
    for (const [from, to] of [
      [first, second],
      [second, third],
    ] as const) {
      // The warning is about the password in the URL of Postgres.
      const { code, stdout, stderr } = await runCli(['migrate-data', '--from', from.url, '--to', to.url]);
      expect([code, stderr]).toEqual([0, expect.stringMatching(/^(anabranch: --\w+ holds a password.*\n)?$/)]);
      const [, copied, identical] =
        /Copied \d+ namespaces?: (\d+) trajectories .*\. Equal in both databases: (\d+) trajectories\./.exec(stdout) ??
        [];
      expect(Number(copied)).toBeGreaterThan(3);
      expect(identical).toBe(copied);
      expect(await verifiedLinesIn(to)).toEqual(before);
    }
  });
});

/** Makes another temporary folder that of the process, until the test ends. */
async function temporaryFolder(): Promise<string> {
  const folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-demo-test-'));
  vi.stubEnv('TMPDIR', folder);
  return folder;
}

afterEach(async () => {
  const folder = os.tmpdir();
  vi.unstubAllEnvs();
  if (folder !== os.tmpdir()) await rm(folder, { recursive: true, force: true });
});

describe('anabranch demo, when it is interrupted', { timeout: 240_000 }, () => {
  let server: TestServer;
  beforeAll(async () => {
    server = await startTestServer({ engine: 'sqlite' });
  });
  afterAll(() => server?.stop());

  it('during its variants stops at once with a message, leaves no process running, and removes the scratch database', async () => {
    const stop = new AbortController();
    const temporary = await temporaryFolder();
    const { code, stdout, stderr } = await runCli(['demo', '--json'], {
      signal: stop.signal,
      onOutput: (text) => {
        if (text.includes('"event":"step","name":"hasty"')) stop.abort(); // its process is running at full speed
      },
    });
    expect({ code, stderr }).toEqual({ code: 1, stderr: 'Interrupted.\n' });
    expect(await readdir(temporary)).toEqual([]);
    const started = events(stdout).find(({ event }) => event === 'started');
    expect(() => process.kill(Number(started?.pid), 0)).toThrow(/ESRCH/);
  });

  it('during its training on a terminal stops its bars at once with a message, and leaves no worker running', async () => {
    const stop = new AbortController();
    const { code, stdout, stderr } = await runCli(['demo', '--address', server.url], {
      terminal: true,
      signal: stop.signal,
      onOutput: (soFar) => {
        if (/run-1 +━+─/.test(lastWritten(soFar))) stop.abort(); // workers have played some turns
      },
    });
    expect({ code, stderr }).toEqual({ code: 1, stderr: 'Interrupted.\n' });
    const text = stripVTControlCharacters(stdout);
    expect(text).toContain(`Server ${server.url}\n`);
    expect(text).toMatch(/hasty +━+─+ \d{3} /);
    expect(text).toMatch(/[├└]─@200 angle only .* failed/);
    expect(text).toMatch(/run-1 +━+─+ \d+ +(.* left, )?\d+\/20 roll/);
    expect(text).toMatch(/train step 1 +━+─* \d+ /);
    expect(stdout.lastIndexOf('\u001b[?25h')).toBeGreaterThan(stdout.lastIndexOf('\u001b[?25l')); // the cursor is back
    const pids = [...text.matchAll(/worker-\d: process (\d+) claims rollouts/g)].map(([, pid]) => Number(pid));
    expect(pids.length).toBeGreaterThan(1);
    for (const pid of pids) expect(() => process.kill(pid, 0)).toThrow(/ESRCH/);
  });

  /** What the last update of the bars, and the one before, have drawn. */
  const lastWritten = (soFar: string) => stripVTControlCharacters(soFar.slice(-2000));
});

// A demo takes some seconds of two cores, and a multiple of that if tests share them.
describe('anabranch demo, without a server', { timeout: 240_000 }, () => {
  let folder: string;
  /** The database of the demo, for the tests after it. */
  let kept: string;
  beforeAll(async () => {
    folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-kept-demo-'));
    kept = path.join(folder, 'demo.db');
  });
  afterAll(() => rm(folder, { recursive: true, force: true }));

  it('leaves nothing in the temporary folder, and names the option that keeps the data', async () => {
    const temporary = await temporaryFolder();
    const { code, stdout, stderr } = await runCli(['demo']);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expect(await readdir(temporary)).toEqual([]);
    expect(stdout.split('\n').slice(-3)).toEqual([
      'The data is removed. To keep it and look around:',
      '  npm run -s anabranch -- demo --database sqlite:demo.db',
      '',
    ]);
  });

  it('keeps a named database, draws the picture of README.md, prints the summary of the training and commands that read the database', async () => {
    const { code, stdout, stderr } = await runCli(['demo', '--database', `sqlite:${kept}`]);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    const picture = /^```\n([^`]*CartPole-v1[^`]+)\n```$/mu.exec(readFileSync('README.md', 'utf8'))?.[1] ?? '';
    expect(picture.split('\n')).toHaveLength(6);
    expect(stdout).toContain(picture);
    expect(stdout).toMatch(
      /replayed from its step 250 in a fresh environment:\n.*every observation and state is identical/,
    );
    expect(stdout).toMatch(
      /^CartPole-v1, seed 7 .* 501 +500 completed\n(?=(?:.*\n){0,3}[├└]─@200 angle only .* failed\n)(?:├─@200 .*\n){3}└─@200 /m,
    );
    for (const line of stdout.split('\n')) {
      if (!line.startsWith('  npm run') && !line.startsWith('Server ')) expect(line.length).toBeLessThanOrEqual(80);
    }
    expect(stdout).toMatch(/^ {2}worker-1: process \d+ killed \(SIGKILL\) after 10 turns of a rollout$/m);
    expect(stdout).toMatch(/^ {2}worker-\d: claimed that rollout again, as attempt 2$/m);
    expect(stdout).toMatch(/^ {2}run-1: \d+ %, \d+ of 20 rollouts, \d+ s left$/m);
    expect(stdout).toMatch(/^2, eval +4 +\d+\.\d ±\d+\.\d +\d+ % \(\d+–\d+\) +–$/m);
    const commands = [...stdout.matchAll(/^ {2}npm run -s anabranch -- (.*)$/gm)].map(([, args = '']) =>
      args.split(' '),
    );
    expect(commands.map(([name]) => name)).toEqual(['tree', 'tail', 'run', 'serve']);
    const looks = [];
    for (const args of commands.slice(0, -1)) looks.push(await runCli(args));
    expect(looks).toMatchObject([
      { code: 0, stdout: expect.stringMatching(/[├└]─@200 hasty/) },
      { code: 0, stdout: expect.stringMatching(/── failed: fell at step \d+ ──/) },
      { code: 0, stdout: expect.stringMatching(/\n {2}eval 2 +.* completed\n {4}group 0/) },
    ]);
    // The picture of docs/tables.md, by the command that it names.
    const tree = commands[0]?.slice(1) ?? [];
    const value = ['--value', 'observation:/2', '--label', 'pole angle'];
    const drawn = await runCli(['picture', ...tree, ...value]);
    expect(drawn).toMatchObject({ code: 0, stderr: '' });
    await expect(drawn.stdout).toMatchFileSnapshot('../../docs/images/tree.svg');
    const dark = await runCli(['picture', ...tree, ...value, '--theme', 'dark']);
    await expect(dark.stdout).toMatchFileSnapshot('../../docs/images/tree-dark.svg');
  });

  it('W13: stores of every variant what an undisturbed run would have produced, and completes every rollout', async () => {
    await using server = await startTestServer({ database: databaseAt(`sqlite:${kept}`) });
    const client = connectClient({ address: server.url });
    const { trajectories } = await client.trajectories.listTrajectories({
      labels: { demo: 'cartpole' },
      rootsOnly: true,
    });
    const { nodes } = await client.trajectories.getTree({ trajectoryId: trajectories[0]?.id ?? '' });
    const variants = nodes.slice(1).map(({ trajectory }) => trajectory!);
    // They are created concurrently.
    expect(variants.map(({ name }) => name).toSorted()).toEqual(VARIANTS.map(({ name }) => name).toSorted());
    for (const { id, name } of variants) {
      expect(await stored(client, id, 201n)).toEqual(expected(gainsOf(name), cartAtFork(DEFAULT_SEED)));
    }
    const { runs } = await client.runs.listRuns({ experimentName: 'cartpole-training' });
    const { rollouts } = await client.rollouts.listRollouts({ runId: runs[0]?.run?.id ?? '', pageSize: 100 });
    expect(rollouts.map(({ status }) => status)).toEqual(Array.from({ length: 20 }, () => Status.COMPLETED));
    client.close();
  });

  /** A database that stays as it is. */
  function databaseAt(url: string): TestDatabase {
    const drop = async () => undefined;
    return { engine: 'sqlite', url, adminUrl: url, drop, [Symbol.asyncDispose]: drop };
  }
});
