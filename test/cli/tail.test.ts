import { fromJsonString } from '@bufbuild/protobuf';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { OwnedStepSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type AnabranchClient, connectClient, openWriter } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { GENTLE, grow, HASTY, LATE, MAIN_LINE, plantTree, treeId } from './grove.ts';
import { runCli } from './run_cli.ts';

describe.each(ENGINES)('anabranch tail, on %s', (engine) => {
  let server: TestServer;
  let client: AnabranchClient;
  let at: string[];

  beforeAll(async () => {
    server = await startTestServer({ engine });
    client = connectClient({ address: server.url });
    at = ['--address', server.url];
    await plantTree(client);
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });

  /** The step numbers that were printed. */
  async function numbers(...args: string[]): Promise<number[]> {
    const { code, stdout } = await runCli(['tail', ...args, ...at]);
    expect(code).toBe(0);
    return stdout.split('\n').flatMap((line) => (/^ +\d+ /.test(line) ? [Number.parseInt(line, 10)] : []));
  }

  const range = (from: number, to: number) => Array.from({ length: to - from }, (_, i) => from + i);

  it('shows the last ten steps of a sealed trajectory and its status, and exits', async () => {
    expect(await numbers(MAIN_LINE)).toEqual(range(21, 31));
    const { stdout } = await runCli(['tail', HASTY, ...at]);
    await expect(stdout).toMatchFileSnapshot('golden/tail.txt');
  });

  it('with colours prints the same text on a terminal', async () => {
    const { stdout } = await runCli(['tail', HASTY, ...at], { terminal: true });
    await expect(stdout).toMatchFileSnapshot('golden/tail.terminal.txt');
  });

  it('starts at the requested step, also above the branch point', async () => {
    expect(await numbers(MAIN_LINE, '-n', '3')).toEqual([28, 29, 30]);
    expect(await numbers(MAIN_LINE, '-n', '0')).toEqual([]);
    expect(await numbers(MAIN_LINE, '-n', '99')).toEqual(range(0, 31));
    expect(await numbers(`${MAIN_LINE}@29`)).toEqual([29, 30]);
    expect(await numbers(GENTLE, '--from', '0')).toEqual(range(0, 26));
    expect(await numbers(LATE, '--from', '5', '--no-follow')).toEqual(range(5, 23));
  });

  it('B5: starts at a tag', async () => {
    expect(await numbers(`${MAIN_LINE}@fork`)).toEqual(range(10, 31));
  });

  it('names the owner of inherited steps', async () => {
    const { stdout } = await runCli(['tail', `${LATE}@9`, '--no-follow', ...at]);
    const owners = stdout.split('\n').flatMap((line, i) => (line.startsWith('──') ? [`${i}: ${line}`] : []));
    expect(owners).toEqual([
      `0: ── steps of ${MAIN_LINE} ──`,
      `3: ── steps of ${GENTLE} ──`,
      `14: ── steps of ${LATE} ──`,
    ]);
  });

  it('--json prints one complete step per line, with its owner', async () => {
    const { stdout } = await runCli(['tail', `${LATE}@20`, '--no-follow', '--json', ...at]);
    const steps = stdout
      .trim()
      .split('\n')
      .map((line) => fromJsonString(OwnedStepSchema, line));
    expect(steps.map(({ trajectoryId, step }) => [trajectoryId, step?.stepNumber])).toEqual([
      [GENTLE, 20n],
      [LATE, 21n],
      [LATE, 22n],
    ]);
    expect(steps[1]?.step).toMatchObject({ reward: 2.25, actions: [{ name: 'paddle' }] });
  });

  it('R2: follows live, each step once and in order, until the seal', async () => {
    const trajectoryId = treeId(engine === 'sqlite' ? 50 : 51);
    await client.trajectories.createTrajectory({ trajectoryId, root: { stepNumber: 0n } });
    const seen = Promise.withResolvers<void>();
    const following = runCli(['tail', trajectoryId, ...at], { onOutput: () => seen.resolve() });
    await seen.promise; // the root is on screen: later steps arrive live
    await grow(client, trajectoryId, 25, { reward: 1, seal: Status.CANCELLED });
    const { code, stdout } = await following;
    expect(code).toBe(0);
    const lines = stdout.trimEnd().split('\n');
    expect(lines.slice(0, -1).map((line) => Number.parseInt(line, 10))).toEqual(range(0, 26));
    expect(lines.at(-1)).toBe('── cancelled ──');
  });

  it('exits without an error on Ctrl-C', async () => {
    const stop = new AbortController();
    const { code, stdout, stderr } = await runCli(['tail', LATE, '-n', '1', ...at], {
      signal: stop.signal,
      onOutput: () => stop.abort(),
    });
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expect(stdout).toContain('bend 22');
  });

  it('shows any step in one line of 80 columns', async () => {
    const trajectoryId = treeId(60);
    await client.trajectories.createTrajectory({ trajectoryId });
    await using writer = await openWriter(client, { trajectoryId });
    const state = new Uint8Array(20_000);
    await writer.append({
      observations: [{ type: 'text', content: { text: 'line\nbreak \u001b[31mred\u001b[0m 日本語' } }],
    });
    await writer.append({
      actions: [{ type: 'code', content: { text: 'x = 1\n'.repeat(5000) } }, { type: 'wait' }],
      observations: [
        { type: 'screenshot', content: { data: state, mediaType: 'image/png' } },
        { type: 'tool_result', isError: true, content: { uri: 'file:///tmp/trace' } },
      ],
      reward: Number.NaN,
      states: { env: state, agent: state, memory: state, inbox: state },
    });
    await writer.append({
      actions: [{ type: 'shot', content: { data: state, mediaType: 'image/png' } }],
      reward: -1 / 3,
      truncated: true,
    });
    await writer.append({
      actions: [{ type: 'torque', content: { tensor: { dtype: '<f4', shape: [2], data: new Uint8Array(8) } } }],
      observations: [{ type: 'pixels', content: { tensor: { dtype: '|u1', shape: [100, 200], data: state } } }],
    });
    // 16 KiB of items are stored as a state.
    const numbers = new Uint8Array(Float32Array.from({ length: 4096 }, (_, i) => i / 10).buffer);
    const tensor = { dtype: '<f4', shape: [64, 64], data: numbers };
    await writer.append({ observations: [{ type: 'grid', content: { tensor } }] });
    await writer.append({
      observations: [{ content: { tensor: { dtype: '<f4', shape: [4097], data: new Uint8Array(4 * 4097) } } }],
    });
    const { stdout } = await runCli(['tail', trajectoryId, '--no-follow', ...at]);
    await expect(stdout).toMatchFileSnapshot('golden/tail.contents.txt');
  });
});
