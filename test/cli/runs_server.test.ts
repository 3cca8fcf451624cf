/** Tests the commands of runs with the real server. */
import { create } from '@bufbuild/protobuf';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { StepSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { type AnabranchClient, connectClient, openMetricLogger } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { grow } from './grove.ts';
import { type CliOptions, runCli } from './run_cli.ts';

const { TRAIN_STEP, EVAL } = StageKind;

describe.each(ENGINES)('the commands of runs, on %s', (engine) => {
  let server: TestServer;
  let client: AnabranchClient;

  beforeAll(async () => {
    server = await startTestServer({ engine });
    client = connectClient({ address: server.url });
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });

  async function outputOf(args: readonly string[], options: CliOptions = {}): Promise<string> {
    const { code, stdout, stderr } = await runCli([...args, '--address', server.url], options);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    return stdout;
  }

  /** Starts a run with a main trajectory of this many steps. */
  async function makeRun(name: string, more: object = {}): Promise<string> {
    const mainTrajectory = { root: create(StepSchema, {}) };
    const { run } = await client.runs.createRun({ name, mainTrajectory, initialStatus: Status.RUNNING, ...more });
    return run?.id ?? '';
  }

  it('say what to do if there are no runs yet', async () => {
    expect(await outputOf(['runs'])).toMatch(/^No runs yet: /);
  });

  describe('with runs', () => {
    let main: string;
    let left: string;

    beforeAll(async () => {
      await client.runs.createExperiment({ name: 'rivers', defaultConfigJson: '{"depth": {"least": 1, "most": 9}}' });
      main = await makeRun('main', {
        experimentName: 'rivers',
        labels: { model: 'pid' },
        configJson: '{"depth": {"most": 7}}',
        plan: { stagePlans: [{ kind: TRAIN_STEP, stages: 4 }] },
      });
      const { run } = await client.runs.getRun({ runId: main });
      await grow(client, run?.mainTrajectoryId ?? '', 30, { reward: 1 });
      for (const number of [1n, 2n]) {
        const { stage } = await client.runs.getOrCreateStage({ runId: main, kind: TRAIN_STEP, number });
        const stageId = stage?.id ?? '';
        await client.runs.startStage({ stageId });
        await client.runs.updateStage({
          stageId,
          updateMask: { paths: ['metrics', 'phase'] },
          metrics: { loss: 1 / Number(number) },
          phase: 'deepening',
        });
        if (number === 1n) await client.runs.completeStage({ stageId });
      }
      await using metrics = openMetricLogger(client, { runId: main });
      for (let step = 0; step < 5000; step += 1) metrics.log('level', step, Math.sin(step / 500));
      left = (await client.runs.branchRun({ runId: main, stepNumber: 10n, name: 'left' })).run?.id ?? '';
      await client.runs.failRun({ runId: left, message: 'ran aground' });
      await makeRun('main', { heartbeatTimeout: { seconds: 1n } });
    });

    it('runs lists them with progress, newest first, and filters', async () => {
      const lines = (await outputOf(['runs', '--experiment', 'rivers'])).trimEnd().split('\n');
      expect(lines[1]).toMatch(/^left [0-9a-f-]{36} ─{10} {3}0 % +10 failed$/);
      expect(lines[2]).toMatch(/^main [0-9a-f-]{36} ━━─{8} {2}25 % +30 running$/);
      expect(lines).toHaveLength(3);
      expect((await outputOf(['runs', '--label', 'model=pid'])).split('\n')).toHaveLength(3);
      expect(await outputOf(['runs', '--status', 'failed'])).not.toContain('main');
      const all = await outputOf(['runs', '-n', '1000']);
      expect(all.split('\n').map((line) => line.split(/ +/)[0])).toEqual(['run', 'main', 'left', 'main', '']);
    });

    it('run shows config, stages, metrics and branches', async () => {
      const page = await outputOf(['run', 'main', '-e', 'rivers']);
      expect(page).toContain(`\n  id          ${main}\n  experiment  rivers\n  number      1\n`);
      expect(page).toMatch(/\n {2}depth\.least {2}1\n {2}depth\.most {3}7 \*\n/);
      expect(page).toMatch(/\n {2}train step 1 100 % +\d+ s completed deepening, loss=1\n/);
      expect(page).toMatch(/\n {2}train step 2 .* running +deepening, loss=0\.5\n/);
      expect(page).toMatch(/\n {2}level +[▁▂▃▄▅▆▇█]{24} +-0\.5\d+ +-1 +1\n/);
      expect(page).toMatch(/\n\* main .* running\n└─@10 left .* failed\n$/);
      expect(await outputOf(['run', main])).toBe(page);
    });

    it('runs --stale shows runs whose heartbeats have stopped', async () => {
      const runId = await makeRun('silent', { heartbeatTimeout: { seconds: 1n } });
      await client.runs.heartbeatRun({ runId });
      await expect
        .poll(() => outputOf(['runs', '--stale']), { timeout: 20_000 })
        .toMatch(/\nsilent .*running, stale\n/);
      expect(await outputOf(['run', runId])).toContain('none for more than 1 s');
    });
  });

  it('M5: watch prints each change once, and ends with the run', async () => {
    const runId = await makeRun('watched', {
      initialStatus: Status.PENDING,
      plan: { stagePlans: [{ kind: EVAL, stages: 1, substeps: 2 }] },
    });
    let stageId = '';
    /** What is done next, once the given text is on screen. */
    const story: [string, () => Promise<unknown>][] = [
      ['watched: pending', () => client.runs.startRun({ runId, phase: 'sampling' })],
      [
        'watched: running, sampling',
        async () => {
          const made = await client.runs.getOrCreateStage({
            runId,
            kind: EVAL,
            number: 1n,
            initialStatus: Status.RUNNING,
          });
          stageId = made.stage?.id ?? '';
        },
      ],
      [
        'eval 1: running',
        () =>
          client.runs.updateStage({ stageId, updateMask: { paths: ['completed_substeps'] }, completedSubsteps: 1n }),
      ],
      ['eval 1: running, 1 substep', () => client.runs.completeStage({ stageId, message: 'good' })],
      ['eval 1: completed, good, 1 substep', () => client.runs.completeRun({ runId, message: 'done' })],
    ];
    const doing: Promise<unknown>[] = [];
    const output = await outputOf(['watch', runId, '--exit-status'], {
      onOutput: (soFar) => {
        const [next] = story;
        if (next === undefined || !soFar.includes(`${next[0]}\n`)) return;
        story.shift();
        doing.push(next[1]());
      },
    });
    await Promise.all(doing);
    expect(story).toEqual([]);
    const lines = output.trimEnd().split('\n');
    expect(lines.at(-1)).toBe('watched: completed, sampling, done');
    expect(lines.filter((line) => !line.startsWith('progress: '))).toEqual([
      'watched: pending',
      'watched: running, sampling',
      'eval 1: running',
      'eval 1: running, 1 substep',
      'eval 1: completed, good, 1 substep',
      'watched: completed, sampling, done',
    ]);
    expect(lines.at(-2)).toMatch(/^progress: 100 %/);
  });

  it('watch on a terminal ends with the picture of the ended run', async () => {
    const runId = await makeRun('drawn');
    let cancelled: Promise<unknown> | undefined;
    const screen = await outputOf(['watch', 'drawn'], {
      terminal: true,
      env: { NO_COLOR: '1' },
      onOutput: () => {
        cancelled ??= client.runs.cancelRun({ runId, message: 'enough' });
      },
    });
    await cancelled;
    expect(screen.slice(screen.lastIndexOf('\u001b[0J') + 4)).toMatch(/^drawn +cancelled\nenough\n$/);
    expect((await runCli(['watch', 'drawn', '--exit-status', '--address', server.url])).code).toBe(1);
  });

  it('a run that is deleted while it is watched causes an error', async () => {
    const runId = await makeRun('doomed');
    const stop = new AbortController();
    let deleted: Promise<unknown> | undefined;
    const { code, stderr } = await runCli(['watch', runId, '--address', server.url], {
      signal: stop.signal,
      onOutput: () => {
        deleted ??= client.runs.deleteRun({ runId }).catch((error: unknown) => {
          stop.abort(); // no event will end the watch
          return error;
        });
      },
    });
    expect(await deleted).toMatchObject({ deletedRuns: 1n, deletedTrajectories: 1n });
    expect(code).toBe(1);
    expect(stderr).toContain('(RUN_DELETED)');
  });
});
