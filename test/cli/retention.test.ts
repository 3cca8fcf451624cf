import { randomUUID } from 'node:crypto';
import { fromJsonString } from '@bufbuild/protobuf';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  PlanRetentionResponseSchema,
  StoredRetentionPolicySchema,
} from '../../gen/es/anabranch/v1/retention_service_pb.js';
import { type AnabranchClient, connectClient, openWriter } from '../../src/client/index.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { runCli } from './run_cli.ts';

const ID = '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c5b6c';

describe('anabranch retention', () => {
  let server: TestServer;
  let client: AnabranchClient;
  let at: string[];

  beforeAll(async () => {
    server = await startTestServer({ engine: 'sqlite', settings: { retentionMs: 50 } });
    client = connectClient({ address: server.url });
    at = ['--address', server.url];
    const { run } = await client.runs.createRun({ name: 'old' });
    await client.trajectories.createTrajectory({ trajectoryId: ID, runId: run!.id });
    const writer = await openWriter(client, { trajectoryId: ID });
    for (let i = 0; i < 4; i += 1) await writer.append({ states: { env: Buffer.alloc(5000, i) } });
    await writer.close();
    await client.trajectories.setTag({ trajectoryId: ID, name: 'best', stepNumber: 1n });
  });
  const trajectoryWith = async (fields: { readonly runId?: string; readonly labels?: Record<string, string> }) => {
    const trajectoryId = randomUUID();
    await client.trajectories.createTrajectory({ trajectoryId, ...fields });
    const writer = await openWriter(client, { trajectoryId });
    await writer.append({ states: { env: Buffer.alloc(5000, 7) } });
    await writer.close();
    return trajectoryId;
  };
  const hasState = async (trajectoryId: string) => {
    const { step } = await client.trajectories.getStep({ trajectoryId, stepNumber: 0n });
    return step!.states[0]!.prunedTime === undefined;
  };
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });

  it('S14: plan shows what would be removed and what is pinned, and apply removes it as of the time of the plan', async () => {
    const policy = ['--run', 'old', '--state', 'env', '--keep-last', '1'];
    const plan = await runCli(['retention', 'plan', ...policy, ...at]);
    expect([plan.code, plan.stderr]).toEqual([0, '']);
    const lines = plan.stdout.trimEnd().split('\n');
    expect(lines.slice(0, 3)).toEqual([`${ID}@0  env`, `${ID}@2  env`, `${ID}@1  pinned by tag`]);
    expect(lines[3]).toMatch(
      /^Would remove 0 trajectories, 0 steps, 2 states: .* as they were sent, about .* stored\.$/,
    );
    const asOf = /^As of (\S+)$/.exec(lines[4]!)![1]!;
    const { step } = await client.trajectories.getStep({ trajectoryId: ID, stepNumber: 0n });
    expect(step?.states[0]?.prunedTime).toBeUndefined();
    const applied = await runCli(['retention', 'apply', ...policy, '--as-of', asOf, ...at]);
    expect(applied.stdout.split('\n').slice(0, 3)).toEqual(lines.slice(0, 3));
    expect(applied.stdout).toContain('Removed 0 trajectories, 0 steps, 2 states');
    const json = await runCli(['retention', 'plan', ...policy, '--include-tagged', '--json', ...at]);
    const messages = json.stdout.trimEnd().split('\n');
    const parsed = messages.map((line) => fromJsonString(PlanRetentionResponseSchema, line));
    expect(parsed.flatMap(({ items }) => items)).toMatchObject([{ trajectoryId: ID, stepNumber: 1n }]);
    expect(parsed.at(-1)?.totals?.states).toBe(1n);
  });

  it('S14: deletes whole trajectories by age', async () => {
    const young = await runCli(['retention', 'apply', '--trajectories', '--older-than', '30d', ...at]);
    expect(young.stdout).toContain('Removed 0 trajectories');
  });

  it('S14: --experiment limits a policy to the experiment, and one that does not exist removes nothing', async () => {
    const { experiment } = await client.runs.createExperiment({ name: 'sweep' });
    const id = experiment!.id;
    const { run } = await client.runs.createRun({ name: 'first', experimentId: id });
    const inside = await trajectoryWith({ runId: run!.id });
    const outside = await trajectoryWith({});
    for (const unknown of [randomUUID(), 'sweeps', '']) {
      for (const policy of [['--state', 'env'], ['--trajectories']]) {
        const { code, stdout } = await runCli(['retention', 'apply', '-e', unknown, ...policy, ...at]);
        expect([code, stdout]).toEqual([unknown === '' ? 2 : 1, '']);
      }
    }
    expect([await hasState(inside), await hasState(outside)]).toEqual([true, true]);
    const plan = await runCli(['retention', 'plan', '--experiment', id, '--state', 'env', ...at]);
    expect(plan.stdout.split('\n').slice(0, -3)).toEqual([`${inside}@0  env`]);
    const applied = await runCli(['retention', 'apply', '--experiment', 'sweep', '--state', 'env', ...at]);
    expect(applied.stdout).toContain('Removed 0 trajectories, 0 steps, 1 state');
    expect([await hasState(inside), await hasState(outside)]).toEqual([false, true]);
  });

  it('S14: --status and --label choose the trajectories to delete', async () => {
    const labels = { model: 'pid' };
    const [running, other] = [await trajectoryWith({ labels }), await trajectoryWith({ labels: { model: 'dqn' } })];
    const policy = ['--trajectories', '--status', 'running,failed', '--label', 'model=pid'];
    const { code, stdout } = await runCli(['retention', 'apply', ...policy, ...at]);
    expect([code, stdout.split('\n')[0]]).toEqual([0, `${running}  deleted`]);
    expect(stdout).toContain('Removed 1 trajectory, 1 step, 1 state');
    expect(await hasState(other)).toBe(true);
    const pending = await runCli(['retention', 'apply', '--trajectories', '--status', 'pending', ...at]);
    expect([pending.code, pending.stderr]).toEqual([1, expect.stringContaining('statuses')]);
    expect(await hasState(other)).toBe(true);
  });

  it.each([['--keep-every', '2'], ['--include-branch-points'], ['--include-terminal'], ['--media', 'image/png']])(
    'a policy for trajectories refuses %s',
    async (...option) => {
      const { code, stderr } = await runCli(['retention', 'apply', '--trajectories', ...option, ...at]);
      expect([code, stderr]).toEqual([2, expect.stringContaining('cannot be used with')]);
    },
  );

  it.each([
    ['--status', 'failed'],
    ['--label', 'model=pid'],
    ['--on-branches', 'refuse'],
  ])('a policy for states refuses %s', async (...option) => {
    const { code, stderr } = await runCli(['retention', 'apply', '--state', 'env', ...option, ...at]);
    expect([code, stderr]).toEqual([2, expect.stringContaining('cannot be used with')]);
  });

  it('S15: set stores a policy, list shows it with its last execution, and delete removes it', async () => {
    const { run } = await client.runs.createRun({ name: 'nightly' });
    const inside = await trajectoryWith({ runId: run!.id });
    const options = [
      '--run',
      'nightly',
      '--state',
      'env',
      '--media',
      'image/png',
      '--older-than',
      '0s',
      '--include-tagged',
    ];
    const set = await runCli(['retention', 'set', 'nightly', '--interval', '12h', ...options, ...at]);
    expect([set.code, set.stderr]).toEqual([0, '']);
    expect(set.stdout.split('\n').slice(0, 3)).toEqual([
      'nightly',
      `  policy  --run ${run!.id} --state env --media image/png --include-tagged`,
      '  every   12h',
    ]);
    expect(set.stdout).toContain('  last    never applied\n');
    await expect.poll(() => hasState(inside), { timeout: 30_000 }).toBe(false);
    const list = async (...flags: string[]) => (await runCli(['retention', 'list', ...flags, ...at])).stdout;
    await expect
      .poll(() => list(), { timeout: 30_000 })
      .toContain('removed 0 trajectories, 0 steps, 1 state: 4.9 KiB as');
    const stored = fromJsonString(StoredRetentionPolicySchema, await list('--json'));
    expect(stored).toMatchObject({
      name: 'nightly',
      interval: { seconds: 43_200n },
      lastExecution: { errorReason: '' },
    });
    const other = [
      '--trajectories',
      '--status',
      'failed',
      '--label',
      'model=a b',
      '--keep-last',
      '3',
      '--older-than',
      '60d',
    ];
    const more = await runCli(['retention', 'set', 'all', '--interval', '90s', ...other, ...at]);
    const words =
      "--trajectories --status failed --label 'model=a b' --keep-last 3 --older-than 60d --on-branches keep-shared";
    expect(more.stdout.split('\n').slice(0, 3)).toEqual(['all', `  policy  ${words}`, '  every   90s']);
    for (const name of ['all', 'nightly'])
      expect(await runCli(['retention', 'delete', name, ...at])).toEqual({ code: 0, stdout: '', stderr: '' });
    expect(await list()).toBe('No retention policy is stored.\n');
    const gone = await runCli(['retention', 'delete', 'all', ...at]);
    expect([gone.code, gone.stderr]).toEqual([1, expect.stringContaining('Retention policy "all" does not exist')]);
  });

  it('says what is wrong with its options', async () => {
    for (const [args, text] of [
      [['plan'], 'Expected --state NAME or --media TYPE, or --trajectories'],
      [['plan', '--state', 'env', '--older-than', 'old'], 'such as 90s'],
      [['plan', '--state', 'env', '--keep-last', '-1'], 'whole number'],
      [['apply', '--state', 'env', '--as-of', 'yesterday'], 'Expected a time'],
      [['apply', '--state', 'env', '--trajectories'], 'cannot be used with'],
      [['set', '--interval', '1d', '--state', 'env'], "missing required argument 'NAME'"],
      [['set', 'p', '--state', 'env'], '--interval <TIME>'],
      [['set', 'p', '--interval', 'daily', '--state', 'env'], 'such as 90s'],
      [['set', 'p', '--interval', '1d'], 'Expected --state NAME or --media TYPE, or --trajectories'],
      [['delete'], "missing required argument 'NAME'"],
    ] as const) {
      const { code, stderr } = await runCli(['retention', ...args, ...at]);
      expect([code, stderr]).toEqual([2, expect.stringContaining(text)]);
    }
    const unknown = await runCli(['retention', 'plan', '--run', 'unknown', '--state', 'env', ...at]);
    expect([unknown.code, unknown.stderr]).toEqual([1, expect.stringContaining('unknown')]);
  });

  it.each(['plan', 'apply'])('%s --help shows its flags and examples', async (verb) => {
    const { code, stdout } = await runCli(['retention', verb, '--help']);
    expect(code).toBe(0);
    for (const part of ['--address <HOST:PORT>', '--database <URL>', '--json', '--keep-last <N>', '\nExamples:\n']) {
      expect(stdout).toContain(part);
    }
  });
});
