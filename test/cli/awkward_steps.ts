import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { type AnabranchClient, openWriter } from '../../src/client/index.ts';

export const MAIN = '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c0001';
export const BRANCH = '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c0002';

/** Stores a run with a trajectory of five steps, whose values are hard to write into tables, and a branch of it. */
export async function plantAwkward(client: AnabranchClient): Promise<void> {
  await client.runs.createExperiment({ name: 'strange' });
  const { run } = await client.runs.createRun({
    experimentName: 'strange',
    name: 'awkward',
    initialStatus: Status.RUNNING,
  });
  const trajectory = { runId: run?.id ?? '', name: 'main', taskId: 'letters', labels: { kind: 'first' } };
  const whole = Buffer.from(new BigInt64Array([9007199254740993n, -1n, 0n, 7n]).buffer);
  const floats = Buffer.from(new Float32Array([0.5, Number.NaN, Number.NEGATIVE_INFINITY]).buffer);
  const writer = await openWriter(client, { trajectoryId: MAIN, create: { trajectory } });
  await writer.append({ observations: [{ content: { text: 'begin' } }] });
  await writer.append({
    actions: [{ content: { text: 'naïve 👩‍🚀 "quoted"\n' } }],
    observations: [{ content: { json: '{"n": 9007199254740993,\n "x": 1e400}' } }],
    reward: Number.NaN,
  });
  await writer.append({
    actions: [{ content: { tensor: { dtype: '<i8', shape: [2, 2], data: whole } } }],
    observations: [{ content: { tensor: { dtype: '<f4', shape: [3], data: floats } } }],
    reward: Number.POSITIVE_INFINITY,
  });
  await writer.append({
    actions: [
      { type: 'tool_call', name: 'bash', callId: 'c1', content: { json: '{"cmd":"ls"}' }, tokenIds: [5, 6] },
      { type: 'text', content: { text: 'done' } },
    ],
    observations: [
      { type: 'text', content: { text: 'out' } },
      { type: 'text' },
      { type: 'shot', content: { data: Buffer.from([0, 255]), mediaType: 'image/png' } },
    ],
    reward: -0,
    states: { env: Buffer.from('abc') },
  });
  await writer.append({
    actions: [{ content: { json: '{"key":null}' } }],
    observations: [{ content: { json: '[]' } }],
    reward: 1.5,
    terminated: true,
    info: { lives: 3 },
    metrics: { latency: Number.NaN },
    startTime: { ...timestampFromDate(new Date('2026-01-02T03:04:05.678Z')), nanos: 678_901_000 },
  });
  await writer.seal(Status.COMPLETED);
  await writer.close();
  await client.trajectories.branchTrajectory({ trajectoryId: MAIN, stepNumber: 1n, branchId: BRANCH, name: 'branch' });
  await using branch = await openWriter(client, { trajectoryId: BRANCH });
  await branch.append({ reward: 2, labels: { phase: 'reach' } });
}
