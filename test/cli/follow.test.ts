import { stripVTControlCharacters } from 'node:util';
import { fromJsonString } from '@bufbuild/protobuf';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { RunPageChangesSchema, TreeChangesSchema } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { GENTLE, grow, HASTY, LATE, MAIN_LINE, plantTree, treeId } from './grove.ts';
import { type CliOptions, runCli } from './run_cli.ts';

describe.each(ENGINES)('--follow, on %s', (engine) => {
  let server: TestServer;
  let client: AnabranchClient;

  beforeAll(async () => {
    server = await startTestServer({ engine });
    client = connectClient({ address: server.url });
    await plantTree(client);
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });

  /**
   * Runs the command until its output has the last of `words`. When it first has a word, calls the change of that word.
   */
  async function followed(
    args: readonly string[],
    words: readonly (readonly [word: string | RegExp, change?: () => Promise<unknown>])[],
    options: CliOptions = {},
  ) {
    const stop = new AbortController();
    const left = [...words];
    const changes: Promise<unknown>[] = [];
    const onOutput = (soFar: string) => {
      const [next] = left;
      if (next === undefined || stripVTControlCharacters(soFar).search(next[0]) < 0) return;
      left.shift();
      if (next[1] !== undefined) changes.push(next[1]());
      if (left.length === 0) stop.abort();
    };
    const result = await runCli([...args, '--follow', '--address', server.url], {
      ...options,
      signal: stop.signal,
      onOutput,
    });
    await Promise.all(changes);
    return result;
  }

  const addSteps = (steps: number) => () => grow(client, LATE, steps, { reward: 1 });

  it('tree redraws the tree on a terminal while it grows, and ends without an error on Ctrl-C', async () => {
    const { code, stdout, stderr } = await followed(
      ['tree', GENTLE],
      [[LATE, addSteps(2)], [new RegExp(`${LATE} +25 `)]],
      { terminal: true },
    );
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    const frames = stdout.split('\u001b[0J').map(stripVTControlCharacters);
    expect(frames.length).toBeGreaterThan(1);
    for (const frame of frames) for (const id of [MAIN_LINE, GENTLE, HASTY, LATE]) expect(frame).toContain(id);
  });

  it('tree without a terminal prints a line for each trajectory, and for each change', async () => {
    const { stdout } = await followed(['tree', HASTY], [[`${LATE} `, addSteps(1)], ['running, 26 steps']]);
    expect(stdout).toContain(`${HASTY} hasty: failed, 14 steps, reward 7\n`);
    expect(stdout.split('\n').filter((line) => line.startsWith(HASTY))).toHaveLength(1);
  });

  it('tree --json prints each change of the tree, one per line', async () => {
    const { stdout } = await followed(['tree', MAIN_LINE, '--json'], [[LATE, addSteps(1)], ['"nextStepNumber":"27"']]);
    const [first, ...rest] = stdout
      .trimEnd()
      .split('\n')
      .map((line) => fromJsonString(TreeChangesSchema, line));
    expect(first?.nodes).toHaveLength(4);
    expect(rest.flatMap(({ nodes }) => nodes.map(({ trajectory }) => trajectory?.id))).toContain(LATE);
  });

  it('runs follows the list: runs that are created, and runs that change', async () => {
    const { run } = await client.runs.createRun({ name: 'river', initialStatus: Status.RUNNING });
    const create = () => client.runs.createRun({ name: 'delta', initialStatus: Status.RUNNING });
    const screen = await followed(['runs'], [['river', create], [/delta[^\n]*\n[^\n]*river/]], { terminal: true });
    expect(screen).toMatchObject({ code: 0, stderr: '' });
    const say = (phase: string) => () =>
      client.runs.updateRun({ runId: run?.id ?? '', updateMask: { paths: ['phase'] }, phase });
    const lines = await followed(['runs'], [['river', say('flowing')], ['flowing']]);
    expect(lines.stdout).toMatch(new RegExp(`^${run?.id} river: running, flowing`, 'm'));
    const json = await followed(['runs', '--json'], [['river', say('ebbing')], ['ebbing']]);
    const [first] = json.stdout.split('\n').map((line) => fromJsonString(RunPageChangesSchema, line || '{}'));
    expect(first?.page?.runIds).toHaveLength(2);
  });

  it('a tree that is higher than the terminal is cut, so that it can be redrawn in place', async () => {
    for (let i = 0; i < 30; i += 1) {
      const branch = { trajectoryId: HASTY, stepNumber: 12n, branchId: treeId(200 + i) };
      await client.trajectories.branchTrajectory(branch);
    }
    const { stdout } = await followed(['tree', HASTY], [[/… \d+ more/]], { terminal: true });
    expect(stdout.split('\n').length - 1).toBe(22);
    expect(stdout).toContain('… 14 more');
  });

  it.each([
    [['tree'], 2, '--follow follows the tree of a trajectory: expected the id of one.'],
    [['tree', 'river'], 2, '--follow follows the tree of a trajectory'],
    [['tree', treeId(404)], 1, treeId(404)],
    [['runs', '--limit', '1001'], 2, '--follow follows at most 1000 runs: --limit is "1001".'],
    [['runs', '--page', 'x'], 2, "cannot be used with option '--page <TOKEN>'"],
  ])('is refused with exit code for %j: %i', async (args, expected, words) => {
    const { code, stderr } = await runCli([...args, '--follow', '--address', server.url]);
    expect(code).toBe(expected);
    expect(stderr).toContain(words);
  });
});
