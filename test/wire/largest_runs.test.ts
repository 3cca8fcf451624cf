import { randomUUID } from 'node:crypto';
import { type DescMessage, type Message, toBinary } from '@bufbuild/protobuf';
import { createClient, type Interceptor } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { ServerService } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { IfExists } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { LIMITS } from '../../src/domain/limits.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { AppendCall } from './append-call.ts';
import { collect } from './story.ts';
import type { WiresClient } from './wires.ts';

let server: TestServer;
let client: WiresClient;
/** Sizes in bytes of the answers in a test. */
let sizes: number[] = [];

const measure = (schema: DescMessage, message: Message): Message => {
  sizes.push(toBinary(schema, message).length);
  return message;
};

const measuring: Interceptor = (next) => async (request) => {
  const answer = await next(request);
  if (!answer.stream) {
    measure(answer.method.output, answer.message);
    return answer;
  }
  const messages = async function* () {
    for await (const message of answer.message) yield measure(answer.method.output, message);
  };
  return { ...answer, message: messages() };
};

beforeAll(async () => {
  server = await startTestServer();
  const transport = createGrpcTransport({ baseUrl: server.url, interceptors: [measuring] });
  client = {
    trajectories: createClient(TrajectoryService, transport),
    states: createClient(StateService, transport),
    runs: createClient(RunService, transport),
    rollouts: createClient(RolloutService, transport),
    server: createClient(ServerService, transport),
  };
});
afterAll(() => server.stop());
afterEach(() => {
  sizes = [];
});

const KIB = 1024;
const LABELS = Object.fromEntries(Array.from({ length: 64 }, (_, i) => [`${i}`.padEnd(64, 'k'), 'v'.repeat(256)]));
const METRICS = Object.fromEntries(Array.from({ length: 256 }, (_, i) => [`${i}`.padEnd(128, 'k'), i + 0.5]));
/** Returns a JSON object of this many bytes. */
const config = (key: string, bytes: number) => `{"${key}":"${'x'.repeat(bytes - key.length - 7)}"}`;
const text = (bytes: number) => JSON.stringify('m'.repeat(bytes - 2));

/** As many removed keys as a run can have, of the largest size. */
const longKeys = (first: string) =>
  Array.from({ length: LIMITS.removedConfigPaths }, (_, i) => `${first}${i}`.padEnd(LIMITS.configPathBytes - 1, 'k'));
const pathsTo = (keys: readonly string[]) => keys.map((key) => `/${key}`);
const objectOf = (keys: readonly string[]) => Object.fromEntries(keys.map((key) => [key, 1]));

/** As large as a run can be: its effective config comes from two configs, its result from its end. */
async function largestRun(name: string): Promise<string> {
  const { runs } = client;
  const root = await runs.createRun({
    name: `root of ${name}`,
    configJson: config('root', 128 * KIB),
    mainTrajectory: { root: {} },
  });
  const keys = longKeys('k');
  const parent = await runs.branchRun({
    runId: root.run!.id,
    stepNumber: 0n,
    configOverridesJson: JSON.stringify({ ...objectOf(keys), own: 'x'.repeat(100 * KIB) }),
  });
  const { run } = await runs.branchRun({
    runId: parent.run!.id,
    stepNumber: 0n,
    name,
    removedConfigPaths: pathsTo(keys),
    description: 'd'.repeat(16 * KIB),
    configOverridesJson: config('own', 128 * KIB),
    labels: LABELS,
    metadataJson: text(256 * KIB),
    plan: { stagePlans: [1, 2, 3].map((kind) => ({ kind, stages: 10_000_000 })) },
    initialStatus: Status.RUNNING,
  });
  const runId = run!.id;
  await runs.updateRun({ runId, updateMask: { paths: ['metrics'] }, metrics: METRICS });
  const said = { message: 's'.repeat(4 * KIB), phase: 'p'.repeat(256), resultJson: text(256 * KIB) };
  await runs.completeRun({ runId, ...said });
  return runId;
}

async function largestStage(runId: string, number: bigint): Promise<string> {
  const metadataJson = text(256 * KIB);
  const made = await client.runs.getOrCreateStage({ runId, kind: StageKind.TRAIN_STEP, number, metadataJson });
  const stageId = made.stage!.id;
  const time = { seconds: 200_000_000_000n, nanos: 999_999_999 };
  const names = Array.from({ length: 64 }, (_, i) => `${i}`.padEnd(128, 'n'));
  await client.runs.updateStage({
    stageId,
    updateMask: {
      paths: ['metrics', 'timings', 'status_message', 'phase', 'model_uri', 'model_checkpoint_uri'],
    },
    metrics: METRICS,
    timings: Object.fromEntries(names.map((name) => [name, { startTime: time, endTime: time }])),
    statusMessage: 's'.repeat(4 * KIB),
    phase: 'p'.repeat(256),
    modelUri: 'u'.repeat(2 * KIB),
    modelCheckpointUri: 'u'.repeat(2 * KIB),
  });
  return stageId;
}

function expectAllToFit(): void {
  expect(sizes.length).toBeGreaterThan(0);
  expect(Math.max(...sizes)).toBeLessThanOrEqual(LIMITS.messageBytes);
}

describe('RD3: no answer about runs and experiments has more than 1 MiB', () => {
  const name = 'largest';
  /** As large as a run can be. */
  let runId: string;
  /** Another one, with stages that do not fit into one message together. */
  let stagedId: string;
  const STAGES = Array.from({ length: 24 }, (_, i) => BigInt(i));
  beforeAll(async () => {
    runId = await largestRun(name);
    stagedId = await largestRun('staged');
    for (const number of STAGES) await largestStage(stagedId, number);
  });

  it('even if a run has maximal size, and is returned with its trajectory and the stage to resume from', async () => {
    const { runs, trajectories } = client;
    const whole = await runs.getRun({ runId });
    expect(sizes.at(-1)).toBeGreaterThan(900 * KIB);
    const stageId = await largestStage(runId, 1n);
    await runs.startStage({ stageId });
    await runs.completeStage({ stageId, message: 's'.repeat(4 * KIB) });
    const trajectoryId = whole.run!.mainTrajectoryId;
    const paths = ['labels', 'metadata_json', 'metrics'];
    const changes = { labels: LABELS, metadataJson: text(512 * KIB), metrics: METRICS };
    await trajectories.updateTrajectory({ trajectoryId, updateMask: { paths }, ...changes });
    const found = await runs.createRun({ name, ifExists: IfExists.RETURN_EXISTING });
    expect(found).toMatchObject({ created: false, run: { id: runId, configJson: '' }, resumeStage: { id: stageId } });
    expect(found.mainTrajectory).toMatchObject({ id: trajectoryId, metadataJson: '' });
    expectAllToFit();
  });

  it('even if a history is long, a tree is wide, and many stages are open', async () => {
    const { runs } = client;
    const main = { root: {} };
    const { run } = await runs.createRun({ initialStatus: Status.RUNNING, mainTrajectory: main });
    const runId = run!.id;
    const said = { message: 'm'.repeat(4 * KIB), metadataJson: text(16 * KIB), phase: 'p'.repeat(256) };
    for (let i = 0; i < 27; i += 1) {
      await runs.pauseRun({ runId, ...said });
      await runs.resumeRun({ runId, ...said });
    }
    const history = await runs.listStatusChanges({ runId, pageSize: 1000 });
    expect(history.nextPageToken).not.toBe('');
    expect(history.changes.length).toBeGreaterThan(40);
    const branch = { runId, stepNumber: 0n, description: 'd'.repeat(16 * KIB), labels: LABELS };
    for (let i = 0; i < 33; i += 1) await runs.branchRun(branch);
    expect((await runs.getRunTree({ runId, pageSize: 1000 })).nextPageToken).not.toBe('');
    const largeId = await largestRun('with progress');
    for (let number = 0n; number <= LIMITS.openStages; number += 1n) {
      await runs.getOrCreateStage({ runId: largeId, kind: StageKind.EVAL, number, phase: 'p'.repeat(256) });
    }
    expect((await runs.getRun({ runId: largeId, progress: true })).progress?.openStages).toHaveLength(
      LIMITS.openStages,
    );
    expectAllToFit();
  });

  it('even if twenty compared runs differ in every field', async () => {
    const { runs, trajectories } = client;
    const observation = (letter: string) => ({ content: { text: letter.repeat(100 * KIB) } });
    const differing = (letter: string) =>
      JSON.stringify(Object.fromEntries(Array.from({ length: 1500 }, (_, i) => [`key ${i}`, letter.repeat(60)])));
    const [keys, branchKeys] = [longKeys('a'), longKeys('b')];
    const defaultConfigJson = JSON.stringify(objectOf([...keys, ...branchKeys]));
    const { experiment } = await runs.createExperiment({ name: randomUUID(), defaultConfigJson });
    const { run } = await runs.createRun({
      experimentId: experiment!.id,
      configJson: differing('a'),
      removedConfigPaths: pathsTo(keys),
      mainTrajectory: { root: { reward: 1 } },
    });
    const append = (trajectoryId: string, stepNumber: bigint, letter: string) =>
      trajectories.appendStep({ trajectoryId, step: { stepNumber, reward: 1, observations: [observation(letter)] } });
    const { mainTrajectoryId, id: runId } = run!;
    await append(mainTrajectoryId, 1n, 'a');
    const rest = Array.from({ length: 998 }, (_, i) => ({ stepNumber: BigInt(i) + 2n, reward: 0.5 }));
    const { call } = await AppendCall.open(trajectories, { trajectoryId: mainTrajectoryId, writerId: 'w' });
    call.send({ steps: rest });
    await call.acked(1000n);
    await call.close();
    const others: string[] = [];
    for (let i = 0; i < 19; i += 1) {
      const letter = String.fromCharCode('b'.charCodeAt(0) + i);
      const branch = await runs.branchRun({
        runId,
        stepNumber: 0n,
        configOverridesJson: differing(letter),
        removedConfigPaths: pathsTo(branchKeys),
      });
      await append(branch.mainTrajectory!.id, 1n, letter);
      others.push(branch.run!.id);
    }
    const { comparisons, removedConfigPaths } = await runs.compareRuns({
      runIds: [runId, ...others],
      endStepNumber: 1000n,
    });
    expect(removedConfigPaths).toEqual(pathsTo(keys));
    for (const [i, each] of comparisons.entries()) {
      expect(each).toMatchObject({ runId: others[i], configDifferencesTruncated: true });
      expect(each.configDifferences.length).toBeGreaterThan(2);
      expect(each.removedConfigPaths).toEqual(pathsTo(branchKeys).slice(0, each.removedConfigPaths.length));
      expect(each.removedConfigPathsTruncated).toBe(true);
      expect(each.trajectories?.firstDifference).toMatchObject({
        stepNumber: 1n,
        field: 'observations[0].content.text',
      });
      expect(JSON.parse(each.trajectories!.firstDifference!.valueJson)).toMatch(/^a+…$/);
      expect(each.trajectories?.rewards).toHaveLength(1000);
    }
    expect(comparisons).toHaveLength(19);
    const one = await runs.compareRuns({ runIds: [runId, others[0]!] });
    expect(one.comparisons[0]?.configDifferences).toHaveLength(LIMITS.configDifferences);
    expect(one.comparisons[0]).toMatchObject({
      removedConfigPaths: pathsTo(branchKeys),
      removedConfigPathsTruncated: false,
    });
    expectAllToFit();
  });

  it('M1: even if a series is long, which then continues in the next message', async () => {
    const { runs } = client;
    const { run } = await runs.createRun({});
    const runId = run!.id;
    const count = 70_000;
    const stepOf = (i: number) => BigInt(i) * 1_000_000_000_000n;
    for (let from = 0; from < count; from += LIMITS.metricPoints) {
      const points = Array.from({ length: LIMITS.metricPoints }, (_, i) => ({
        key: 'long',
        metricStep: stepOf(from + i),
        value: from + i,
      }));
      await runs.logMetrics({ runId, points });
    }
    await runs.logMetrics({ runId, points: [{ key: 'short', value: 1 }] });
    const answers = await collect(runs.readMetrics({ runIds: [runId] }));
    expect(answers.length).toBeGreaterThan(1);
    const pieces = answers.flatMap(({ series }) => series);
    expect(pieces.at(-1)).toMatchObject({ key: 'short', values: [1], pointCount: 1n });
    const long = pieces.slice(0, -1);
    expect(new Set(long.map(({ key, pointCount }) => `${key} ${pointCount}`))).toEqual(new Set([`long ${count}`]));
    const steps = long.flatMap(({ metricSteps }) => metricSteps);
    expect([steps.length, steps.findIndex((step, i) => step !== stepOf(i))]).toEqual([count, -1]);
    const thin = await collect(runs.readMetrics({ runIds: [runId], maxPoints: 500 }));
    expect(thin[0]!.series[0]!.values.length).toBeLessThanOrEqual(500);
    expect(thin[0]!.series[0]).toMatchObject({ pointCount: BigInt(count) });
    expect([thin[0]!.series[0]!.values[0], thin[0]!.series[0]!.values.at(-1)]).toEqual([0, count - 1]);
    expectAllToFit();
  });

  it('M5: even if the snapshot of a watch is large', async () => {
    const subjects = { it: { run: { runId: stagedId, allStages: true, untilTerminal: true } } };
    const shown = await collect(client.server.watch({ subjects }));
    expect(shown.flatMap(({ run }) => run?.stages ?? [])).toHaveLength(STAGES.length);
    expect(shown.length).toBeGreaterThan(1);
    expect(shown.map(({ caughtUp }) => caughtUp)).toEqual(shown.map((_, i) => i === shown.length - 1));
    expectAllToFit();
  });
});
