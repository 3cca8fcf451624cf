/** Tests the commands of rollouts with the real server. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { type AnabranchClient, connectClient, openWriter } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { type CliOptions, runCli } from './run_cli.ts';

describe.each(ENGINES)('the commands of rollouts, on %s', (engine) => {
  let server: TestServer;
  let client: AnabranchClient;
  let runId: string;
  let stageId: string;

  beforeAll(async () => {
    server = await startTestServer({ engine });
    client = connectClient({ address: server.url });
    const plan = {
      concurrency: 2,
      stagePlans: [{ kind: StageKind.TRAIN_STEP, stages: 2, groupsPerStage: 1, groupSize: 3, maxTurns: 4 }],
    };
    const { run } = await client.runs.createRun({ name: 'queue', initialStatus: Status.RUNNING, plan });
    runId = run?.id ?? '';
    const wanted = { runId, kind: StageKind.TRAIN_STEP, number: 1n, initialStatus: Status.RUNNING };
    stageId = (await client.runs.getOrCreateStage(wanted)).stage?.id ?? '';
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

  /** Claims a rollout and takes this many turns of it. */
  async function claimAndPlay(workerId: string, turns: number) {
    const { claims } = await client.rollouts.claimRollouts({ runId, workerId });
    const [claim] = claims;
    const held = { rolloutId: claim?.rollout?.id ?? '', attempt: claim?.rollout?.attempt ?? 0 };
    await client.rollouts.startRollout(held);
    await using writer = await openWriter(client, { trajectoryId: claim?.trajectory?.id ?? '' });
    await writer.append({ observations: [{ content: { text: 'begin' } }] });
    for (let turn = 0; turn < turns; turn++)
      await writer.append({ actions: [{ name: 'look', content: { text: 'up' } }], reward: 1 });
    return { held, validators: Object.keys(claim?.task?.validators ?? {}) };
  }

  it('list and watch rollouts as they are claimed, completed, released and overridden', async () => {
    const validators = { blue: { expectedResult: 'blue' } };
    await client.rollouts.upsertTasks({ tasks: [{ id: 'sky', name: 'Look at the sky', maxTurns: 4n, validators }] });
    const rollouts = [0n, 1n, 2n].map((number) => ({ groupNumber: 0n, number, taskId: 'sky' }));
    await client.rollouts.createRollouts({ stageId, rollouts });

    const stop = new AbortController();
    let screen = '';
    const watching = outputOf(['watch', 'queue', '--rollouts'], {
      signal: stop.signal,
      onOutput: (soFar) => {
        screen = soFar;
      },
    });
    const seen = (text: string) => expect.poll(() => screen, { timeout: 30_000 }).toContain(text);
    await seen('train step 1, rollout 0/2: pending\n');

    const first = await claimAndPlay('worker-1', 3);
    await seen('train step 1, rollout 0/0: running, by worker-1\n');
    const validations = first.validators.map((name) => ({ name, success: false, actualResult: 'grey' }));
    await client.rollouts.completeRollout({ ...first.held, message: 'it rains', validations });
    await seen('train step 1, rollout 0/0: completed, it rains, 3 turns, reward 3, success: no\n');
    const reason = 'the picture was taken at night';
    await client.rollouts.overrideValidation({ rolloutId: first.held.rolloutId, success: true, reason, actor: 'ana' });
    await seen('train step 1, rollout 0/0: completed, it rains, 3 turns, reward 3, success: yes\n');
    const second = await claimAndPlay('worker-2', 1);
    await client.rollouts.releaseRollout({ ...second.held, message: 'no device', refundAttempt: true });
    await seen('train step 1, rollout 0/1: pending');

    const page = await outputOf(['run', 'queue', '--rollouts']);
    expect(page).toMatch(/\n {2}train step 1 +3 +100 % running\n {4}group 0 {2}sky, 1 of 3 ended +3 +100 % running\n/);
    expect(page).toMatch(new RegExp(`\\n {6}0 ${first.held.rolloutId} +3 +3 +yes completed`));
    expect(await outputOf(['run', 'queue'])).toMatch(/\n {4}group 0 {2}1 of 3 ended +3 +100 % running\n/);

    expect(await outputOf(['runs'])).toMatch(/\nqueue .* 1\/6 running\n/);
    expect(await outputOf(['run', 'queue'])).toContain('\n  rollouts    1 of 6\n');
    await client.runs.completeRun({ runId });
    await watching;
    stop.abort();
  });
});
