/** Tests that no text of others controls the terminal of who runs a command. */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { valueJson } from '../../src/cli/columns.ts';
import { connectClient, openWriter } from '../../src/client/index.ts';
import { outsideSql } from '../store/sql.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { runCli } from './run_cli.ts';

/** C0 and C1 controls, DEL, bidi controls, separators of lines, invisible characters, also beyond the BMP. */
const EVIL = 'a\u001b[2J\u009b2J\u0085\u007f\u202eb\u2066\u200f\u2028\u2029\u200b\u200d\ufeff\u00ad\u{e0041}z';
const LEFT = /[^\n\P{Cc}]|[\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/u;

it('C3: escapes in JSON keep the value, also of lone surrogates', () => {
  for (const text of [EVIL, '\ud800', 'x\udfff', '"\\u009b', '木🌊']) {
    expect(JSON.parse(valueJson({ [text]: [text] }))).toEqual({ [text]: [text] });
    expect(valueJson({ [text]: [text] })).not.toMatch(LEFT);
  }
  expect(valueJson('\u{e0041}\u009b木')).toBe(String.raw`"\udb40\udc41\u009b木"`);
});

describe('C3: no command prints characters that control a terminal or are invisible', () => {
  let server: TestServer;
  let ids: Readonly<Record<'run' | 'trajectory' | 'branch' | 'rollout' | 'state' | 'other', string>>;

  beforeAll(async () => {
    server = await startTestServer({ engine: 'sqlite', settings: { retentionMs: 0 } });
    const client = connectClient({ address: server.url });
    const labels = { [EVIL]: EVIL };
    const trajectoryId = randomUUID();
    const plan = { stagePlans: [{ kind: StageKind.TRAIN_STEP, stages: 1, groupsPerStage: 1, groupSize: 1 }] };
    const experimentName = EVIL;
    await client.runs.createExperiment({ name: EVIL, description: EVIL });
    const { run } = await client.runs.createRun({
      name: EVIL,
      description: EVIL,
      labels,
      experimentName,
      plan,
      initialStatus: Status.RUNNING,
      configJson: JSON.stringify({ [EVIL]: EVIL }),
    });
    const runId = run!.id;
    const { stage } = await client.runs.getOrCreateStage({
      runId,
      kind: StageKind.TRAIN_STEP,
      number: 1n,
      initialStatus: Status.RUNNING,
    });
    const validators = { [EVIL]: { expectedResult: EVIL } };
    await client.rollouts.upsertTasks({ tasks: [{ id: EVIL, name: EVIL, description: EVIL, validators }] });
    const rollouts = [{ groupNumber: 0n, number: 0n, taskId: EVIL, labels }];
    await client.rollouts.createRollouts({ stageId: stage!.id, rollouts });
    const { claims } = await client.rollouts.claimRollouts({ runId, workerId: EVIL });
    const held = { rolloutId: claims[0]!.rollout!.id, attempt: 1 };
    await client.rollouts.startRollout({ ...held, message: EVIL });
    const validations = [{ name: EVIL, success: false, actualResult: EVIL }];
    await client.rollouts.completeRollout({ ...held, message: EVIL, validations, result: { errors: [EVIL] } });
    await client.rollouts.overrideValidation({ ...held, success: true, reason: EVIL, actor: EVIL });
    await client.trajectories.createTrajectory({ trajectoryId, runId, name: EVIL, labels });
    const writer = await openWriter(client, { trajectoryId });
    const text = { type: EVIL, content: { text: EVIL } };
    for (let i = 0; i < 3; i += 1)
      await writer.append({
        observations: [text],
        actions: [{ name: EVIL, content: { text: EVIL } }],
        states: { [EVIL]: Buffer.alloc(5000, i) },
        reward: i,
        metrics: { [EVIL]: i },
      });
    await writer.close();
    await client.trajectories.setTag({ trajectoryId, name: 'best', stepNumber: 1n });
    const branches = await Promise.all(
      [EVIL, `${EVIL}2`].map((value) =>
        client.trajectories.branchTrajectory({ trajectoryId, stepNumber: 1n, name: EVIL, labels: { [EVIL]: value } }),
      ),
    );
    await client.trajectories.sealTrajectory({
      trajectoryId,
      seal: { status: Status.FAILED, message: EVIL },
      writerEpoch: 1n,
    });
    await client.runs.logMetrics({ runId, points: [{ key: EVIL, stageId: '', metricStep: 1n, value: 1 }] });
    await client.runs.failRun({ runId, message: EVIL });
    const policy = { states: { stateNames: [EVIL] } };
    await client.retention.setRetentionPolicy({ name: 'old', interval: { seconds: 900n }, policy });
    const { step } = await client.trajectories.getStep({ trajectoryId, stepNumber: 0n });
    const { step: last } = await client.trajectories.getStep({ trajectoryId, stepNumber: 2n });
    ids = {
      run: runId,
      trajectory: trajectoryId,
      branch: branches[0]!.trajectory!.id,
      rollout: held.rolloutId,
      state: step!.states[0]!.digest,
      other: last!.states[0]!.digest,
    };
    client.close();
  });
  afterAll(() => server?.stop());

  /** Arguments by command, of every command with an option `--json` that prints what others wrote. */
  const COMMANDS: Readonly<Record<string, () => readonly (readonly string[])[]>> = {
    runs: () => [[]],
    run: () => [[ids.run], [ids.run, '--rollouts']],
    watch: () => [[ids.run]],
    tree: () => [[], [ids.trajectory], [ids.run]],
    steps: () => [[ids.trajectory]],
    tail: () => [[ids.trajectory]],
    search: () => [['a']],
    stats: () => [[], ['--run', ids.run], ['--namespace']],
    'retention plan': () => [['--state', EVIL]],
    'retention list': () => [[]],
  };
  /** These are tested below, or print numbers and what their user has named. */
  const OTHERS = [
    'verify',
    'vacuum',
    'retention apply',
    'serve',
    'migrate',
    'demo',
    'table',
    'backup',
    'restore',
    'export',
    'import',
    'migrate-data',
  ];

  it.each(Object.keys(COMMANDS))('%s', async (command) => {
    for (const args of COMMANDS[command]!()) {
      const all = [...command.split(' '), ...args, '--address', server.url];
      for (const form of [[], ['--json']]) {
        const { code, stdout, stderr } = await runCli([...all, ...form]);
        expect({ code, stderr }).toMatchObject({ code: 0, stderr: expect.not.stringMatching(LEFT) });
        expect(stdout).not.toMatch(LEFT);
        expect(stdout.length).toBeGreaterThan(10);
      }
    }
  });

  it('every command with --json is among them', async () => {
    const { stdout } = await runCli(['--help']);
    const named = (help: string) => [...help.matchAll(/^ {2}([a-z][a-z-]*)/gm)].map(([, name]) => name!);
    const commands = [
      ...named(stdout),
      ...named((await runCli(['retention', '--help'])).stdout).map((name) => `retention ${name}`),
    ];
    const withJson = [];
    for (const command of commands) {
      const { stdout: help } = await runCli([...command.split(' '), '--help']);
      if (command !== 'retention' && help.includes('--json ')) withJson.push(command);
    }
    expect(withJson.sort()).toEqual([...Object.keys(COMMANDS), ...OTHERS].sort());
  });

  it('verify, and errors', async () => {
    const sql = await outsideSql(server.database);
    await sql.rows(`update trajectories set max_reward = 100 where namespace = 'default'`);
    await sql.rows(`update tags set step_number = 99, name = 'best' || char(155) || char(8238)`);
    await sql.close();
    for (const form of [[], ['--json']]) {
      const { code, stdout } = await runCli(['verify', '--address', server.url, ...form]);
      expect([code, stdout]).toEqual([1, expect.stringContaining('the tag')]);
      expect(stdout).not.toMatch(LEFT);
    }
    for (const args of [['run', `no ${EVIL}`], ['steps', ids.trajectory, `--${EVIL}`], [EVIL]]) {
      const { code, stderr } = await runCli([...args, ...(args[0] === EVIL ? [] : ['--address', server.url])]);
      expect([code > 0, stderr.length > 10]).toEqual([true, true]);
      expect(stderr).not.toMatch(LEFT);
    }
  });
});
