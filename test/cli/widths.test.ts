/** Tests what every command prints for a store with a hundred rollouts, on terminals of 80 and of 140 columns. */
import { stripVTControlCharacters } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { widthOf } from '../../src/cli/columns.ts';
import { type AnabranchClient, connectClient, openWriter } from '../../src/client/index.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { MAIN_LINE, plantTree } from './grove.ts';
import { type CliOptions, runCli } from './run_cli.ts';

const LONG_NAME = 'cartpole, the linear policy with momentum 0.9';
const GROUPS = 25n;
const SIBLINGS = 4n;

let server: TestServer;
let client: AnabranchClient;
let runId: string;
let rolloutId: string;

beforeAll(async () => {
  server = await startTestServer();
  client = connectClient({ address: server.url });
  await plantTree(client);
  const { run } = await client.runs.createRun({ name: LONG_NAME, initialStatus: Status.RUNNING });
  runId = run?.id ?? '';
  const stages = [1n, 2n].map((number) =>
    client.runs.getOrCreateStage({ runId, kind: StageKind.TRAIN_STEP, number, initialStatus: Status.RUNNING }),
  );
  const [first, second] = await Promise.all(stages);
  for (const { stage } of [first!, second!]) {
    const rollouts = [];
    for (let groupNumber = 0n; groupNumber < GROUPS; groupNumber++) {
      for (let number = 0n; number < SIBLINGS; number++) rollouts.push({ groupNumber, number });
    }
    await client.rollouts.createRollouts({ stageId: stage?.id ?? '', rollouts });
  }
  const { claims } = await client.rollouts.claimRollouts({
    stageId: first?.stage?.id ?? '',
    workerId: 'w',
    maxRollouts: 64,
  });
  for (const { rollout, trajectory } of claims) {
    const held = { rolloutId: rollout?.id ?? '', attempt: rollout?.attempt ?? 0 };
    await client.rollouts.startRollout(held);
    const writer = await openWriter(client, { trajectoryId: trajectory?.id ?? '' });
    await writer.append({ observations: [{ content: { text: 'begin' } }] });
    await writer.append({ actions: [{ name: 'push', content: { text: 'left' } }], reward: 1 });
    await writer.close();
    await client.rollouts.completeRollout(held);
    rolloutId = held.rolloutId;
  }
  await client.runs.completeStage({ stageId: first?.stage?.id ?? '' });
});
afterAll(async () => {
  client?.close();
  await server?.stop();
});

async function drawn(args: readonly string[], options: CliOptions): Promise<string> {
  const { code, stdout, stderr } = await runCli([...args, '--address', server.url], options);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  return stripVTControlCharacters(stdout);
}

describe.each([80, 140])('on a terminal of %i columns', (columns) => {
  it.each([
    ['runs', () => ['runs']],
    ['runs --ids', () => ['runs', '--ids']],
    ['run', () => ['run', runId]],
    ['run --rollouts', () => ['run', runId, '--rollouts']],
    ['tree', () => ['tree']],
    ['tree --all', () => ['tree', '--all']],
    ['tree of trajectories', () => ['tree', MAIN_LINE]],
    ['tree --bars', () => ['tree', MAIN_LINE, '--bars']],
    ['tree of runs', () => ['tree', runId]],
    ['tail', () => ['tail', `${MAIN_LINE}`, '--no-follow']],
  ])('`%s` fits, and ends no line with a comma', async (_, args) => {
    const lines = (await drawn(args(), { terminal: true, columns })).split('\n');
    for (const line of lines) expect(widthOf(line)).toBeLessThanOrEqual(columns);
    expect(lines.filter((line) => /,\s*$/.test(line))).toEqual([]);
  });
});

it('a wide terminal shows full names, with ids', async () => {
  const runs = await drawn(['runs'], { terminal: true, columns: 160 });
  expect(runs).toContain(`\n${LONG_NAME} ${runId} `);
  expect(await drawn(['runs'], { env: { COLUMNS: '160' } })).toBe(runs);
  const narrow = await drawn(['runs'], { terminal: true });
  expect(narrow).not.toContain(runId);
  expect(await drawn(['runs', '--ids'], { terminal: true })).toMatch(
    new RegExp(`\\ncartpole, the .*… ${runId} .* running\\n`),
  );
});

it('`tree` lists the trees that belong to no run, and with --all also those of rollouts', async () => {
  expect((await drawn(['tree'], {})).split('\n').map((line) => line.slice(0, 9))).toEqual([
    'trajector',
    'main line',
    '',
  ]);
  expect((await drawn(['tree', '--all', '-n', '1000'], {})).split('\n')).toHaveLength(2 + 64 + 1);
});

it('`watch --rollouts` names the stage of every group, also after the stage has ended', async () => {
  const stop = new AbortController();
  let screen = '';
  const watching = runCli(['watch', runId, '--rollouts', '--address', server.url], {
    signal: stop.signal,
    onOutput: (soFar) => {
      screen = soFar;
    },
  });
  await expect.poll(() => screen, { timeout: 30_000 }).toContain('train step 2, rollout 24/3: pending\n');
  await client.rollouts.overrideValidation({ rolloutId, success: true, reason: 'seen', actor: 'ana' });
  await expect
    .poll(() => screen, { timeout: 30_000 })
    .toMatch(/train step 1, rollout \d+\/\d+: completed, 1 turn, reward 1, success: yes\n/);
  expect(screen).not.toMatch(/,\s*$/m);
  await client.runs.cancelRun({ runId });
  await watching;
  stop.abort();
});
