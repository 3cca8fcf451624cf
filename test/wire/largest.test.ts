import { create, type DescMessage, type MessageShape, toBinary } from '@bufbuild/protobuf';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { type Step, StepSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  AppendStepRequestSchema,
  GetStepResponseSchema,
  GetTrajectoryResponseSchema,
  ListTrajectoriesResponseSchema,
  ReadStepsResponseSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { LIMITS } from '../../src/domain/limits.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { noise } from './samples.ts';
import { collect, putState, refusal, type WireClient } from './story.ts';
import { connect, GRPC_JS } from './wires.ts';

/** The largest resources that the server accepts must fit into one message when they are returned. */

let server: TestServer;
let client: WireClient;
beforeAll(async () => {
  server = await startTestServer();
  client = connect(GRPC_JS, server.url);
});
afterAll(() => server.stop());

function expectToFit<Desc extends DescMessage>(schema: Desc, answer: MessageShape<Desc>): void {
  expect(toBinary(schema, answer).length).toBeLessThanOrEqual(LIMITS.messageBytes);
}

describe('RD3: no answer has more than 1 MiB', () => {
  it('even if a trajectory has maximal size', async () => {
    const labels = Object.fromEntries(Array.from({ length: 64 }, (_, i) => [`${i}`.padEnd(64, 'k'), 'v'.repeat(256)]));
    const fields = { name: 'n'.repeat(256), taskId: 't'.repeat(256), labels };
    const metadataJson = JSON.stringify('m'.repeat(512 * 1024 - 2));
    const { trajectory } = await client.trajectories.createTrajectory({ ...fields, metadataJson });
    const trajectoryId = trajectory!.id;
    const metrics = Object.fromEntries(Array.from({ length: 256 }, (_, i) => [`${i}`.padEnd(128, 'k'), i + 0.5]));
    await client.trajectories.updateTrajectory({ trajectoryId, updateMask: { paths: ['metrics'] }, metrics });
    const seal = { status: Status.FAILED, message: 's'.repeat(4096) };
    await client.trajectories.sealTrajectory({ trajectoryId, seal });
    expectToFit(GetTrajectoryResponseSchema, await client.trajectories.getTrajectory({ trajectoryId }));
    const list = await client.trajectories.listTrajectories({ view: 2 });
    expect(list.trajectories).toHaveLength(1);
    expectToFit(ListTrajectoriesResponseSchema, list);
    const larger = client.trajectories.createTrajectory({ metadataJson: `${metadataJson} ` });
    expect(await refusal(larger)).toMatchObject({ reason: 'INVALID_REQUEST' });
  });

  it('even if a step has maximal size, and refers to so many states that their sizes are returned too', async () => {
    const stateDigest = await putState(client, noise(300, 1));
    const { trajectory } = await client.trajectories.createTrajectory({});
    const trajectoryId = trajectory!.id;
    const content = { stateDigest, mediaType: 'm'.repeat(100) };
    const step = create(StepSchema, {
      actions: Array.from({ length: 1024 }, () => ({ callId: 'c'.repeat(150), content })),
      observations: Array.from({ length: 1024 }, () => ({ content })),
    });
    const largest = await largestTaken(trajectoryId, step);
    expect(
      toBinary(AppendStepRequestSchema, create(AppendStepRequestSchema, { step: largest })).length,
    ).toBeGreaterThan(LIMITS.messageBytes - 32 * 1024);
    expectToFit(GetStepResponseSchema, await client.trajectories.getStep({ trajectoryId, stepNumber: 0n }));
    const [message] = await collect(client.trajectories.readSteps({ trajectoryId }));
    expectToFit(ReadStepsResponseSchema, message!);
  });

  /** The step with the largest info that is still accepted, found by bisection. */
  async function largestTaken(trajectoryId: string, step: Step): Promise<Step> {
    const withInfo = (length: number) => create(StepSchema, { ...step, infoJson: JSON.stringify('i'.repeat(length)) });
    // A number beyond the end gets that error only if the step is otherwise valid.
    const fits = async (length: number) => {
      const far = { ...withInfo(length), stepNumber: 9n };
      return (await refusal(client.trajectories.appendStep({ trajectoryId, step: far }))).reason === 'STEP_GAP';
    };
    let taken = 0;
    for (let by = 512 * 1024; by >= 1; by /= 2) if (await fits(taken + by)) taken += by;
    const largest = withInfo(taken);
    await client.trajectories.appendStep({ trajectoryId, step: largest });
    return largest;
  }
});
