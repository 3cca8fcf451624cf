import type { MessageInitShape } from '@bufbuild/protobuf';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type {
  PlanRetentionRequestSchema,
  RetentionPolicySchema,
  SetRetentionPolicyRequestSchema,
} from '../../gen/es/anabranch/v1/retention_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { type AnabranchClient, connectClient, errorMetadata, reasonOf } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { collect } from './story.ts';

type Plan = MessageInitShape<typeof PlanRetentionRequestSchema>;

const ENV = { stateNames: ['env'] };
const NOBODY = '00000000-0000-4000-8000-000000000000';

const BAD: readonly (readonly [what: string, request: Plan])[] = [
  ['no policy', {}],
  ['neither states nor trajectories', { policy: {} }],
  ['both of them', { policy: { states: ENV, trajectories: {} } }],
  ['neither names nor media types', { policy: { states: { keepLast: 1n } } }],
  ['an empty name', { policy: { states: { stateNames: [''] } } }],
  ['a run and an experiment', { policy: { states: ENV, runId: NOBODY, experimentId: NOBODY } }],
  ['a run that is no UUID', { policy: { states: ENV, runId: 'run' } }],
  ['a negative age', { policy: { states: { ...ENV, olderThan: { seconds: -1n } } } }],
  ['a negative number of steps', { policy: { states: { ...ENV, keepLast: -1n } } }],
  ['too many steps', { policy: { states: { ...ENV, keepLast: 10_001n } } }],
  ['a negative interval of steps', { policy: { states: { ...ENV, keepEvery: -1n } } }],
  ['a status that no trajectory has', { policy: { trajectories: { statuses: [Status.PENDING] } } }],
  ['a status twice', { policy: { trajectories: { statuses: [Status.FAILED, Status.FAILED] } } }],
];

const POLICY = { states: ENV };
const HOURLY = { seconds: 3600n };

const BAD_STORED: readonly (readonly [
  what: string,
  request: MessageInitShape<typeof SetRetentionPolicyRequestSchema>,
])[] = [
  ['no name', { policy: POLICY, interval: HOURLY }],
  ['a name that begins with a digit', { name: '1', policy: POLICY, interval: HOURLY }],
  ['a name with a space', { name: 'a b', policy: POLICY, interval: HOURLY }],
  ['a name that is too long', { name: 'a'.repeat(129), policy: POLICY, interval: HOURLY }],
  ['no policy', { name: 'p', interval: HOURLY }],
  ['no interval', { name: 'p', policy: POLICY }],
  ['an interval of less than a minute', { name: 'p', policy: POLICY, interval: { seconds: 59n, nanos: 999_999_999 } }],
  ['a negative interval', { name: 'p', policy: POLICY, interval: { seconds: -3600n } }],
  ['an interval of more than 366 days', { name: 'p', policy: POLICY, interval: { seconds: 366n * 86_400n + 1n } }],
];

describe.each(ENGINES)('RetentionService, on %s', (engine) => {
  let server: TestServer;
  let client: AnabranchClient;
  beforeAll(async () => {
    server = await startTestServer({ engine, settings: { retentionMs: 50 } });
    client = connectClient({ address: server.url });
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });

  it.each(BAD)('S14: %s is refused by name, and nothing is removed', async (_, request) => {
    const { policy } = request as { policy?: MessageInitShape<typeof RetentionPolicySchema> };
    const sent = policy === undefined ? {} : { policy };
    const plan = await collect(client.retention.planRetention(sent)).catch((error: unknown) => error);
    const applied = await collect(client.retention.applyRetention(sent)).catch((error: unknown) => error);
    expect([reasonOf(plan), reasonOf(applied)]).toEqual(['INVALID_REQUEST', 'INVALID_REQUEST']);
  });

  it.each(BAD)('S15: %s is refused by name, and no policy is stored', async (_, request) => {
    const given = { name: 'p', interval: HOURLY, ...request } as MessageInitShape<
      typeof SetRetentionPolicyRequestSchema
    >;
    const refusal = await client.retention.setRetentionPolicy(given).catch((error: unknown) => error);
    expect(reasonOf(refusal)).toBe('INVALID_REQUEST');
    expect((await client.retention.listRetentionPolicies({})).retentionPolicies).toEqual([]);
  });

  it.each(BAD_STORED)('S15: %s is refused by name, and no policy is stored', async (_, request) => {
    const refusal = await client.retention.setRetentionPolicy(request).catch((error: unknown) => error);
    expect(reasonOf(refusal)).toBe('INVALID_REQUEST');
    expect((await client.retention.listRetentionPolicies({})).retentionPolicies).toEqual([]);
  });

  it('S15: a policy that is not stored cannot be deleted, and a list goes on with tokens of its own only', async () => {
    const { retention } = client;
    const deleted = await retention.deleteRetentionPolicy({ name: 'none' }).catch((error: unknown) => error);
    expect([reasonOf(deleted), errorMetadata(deleted)]).toEqual([
      'RETENTION_POLICY_NOT_FOUND',
      { retention_policy: 'none' },
    ]);
    const unnamed = await retention.deleteRetentionPolicy({}).catch((error: unknown) => error);
    expect(reasonOf(unnamed)).toBe('INVALID_REQUEST');
    const { trajectory } = await client.trajectories.createTrajectory({});
    await client.trajectories.createTrajectory({});
    const { nextPageToken } = await client.trajectories.listTrajectories({ pageSize: 1 });
    for (const pageToken of ['none', nextPageToken]) {
      const page = await retention.listRetentionPolicies({ pageToken }).catch((error: unknown) => error);
      expect(reasonOf(page)).toBe('INVALID_PAGE_TOKEN');
    }
    await client.trajectories.deleteTrajectory({ trajectoryId: trajectory!.id });
  });

  it('S15, F-24: a server applies a stored policy by itself, and tells what it removed', async () => {
    const { trajectories, retention, runs } = client;
    const { run } = await runs.createRun({});
    const { trajectory } = await trajectories.createTrajectory({ runId: run!.id });
    const trajectoryId = trajectory!.id;
    for (let i = 0; i < 3; i += 1) {
      const step = { stepNumber: BigInt(i), states: [{ name: 'env', data: Buffer.alloc(5000, i) }] };
      await trajectories.appendStep({ trajectoryId, step });
    }
    const policy = { runId: run!.id, states: { ...ENV, keepLast: 1n } };
    const { retentionPolicy } = await retention.setRetentionPolicy({ name: 'nightly', policy, interval: HOURLY });
    expect(retentionPolicy).toMatchObject({ name: 'nightly', policy, interval: HOURLY });
    const listed = async () => (await retention.listRetentionPolicies({})).retentionPolicies;
    await expect
      .poll(async () => (await listed())[0]?.lastExecution?.totals, { timeout: 30_000 })
      .toMatchObject({
        states: 2n,
        steps: 0n,
        logicalBytes: 10_000n,
      });
    const [stored] = await listed();
    const { startTime, endTime, errorReason } = stored!.lastExecution!;
    expect(errorReason).toBe('');
    expect(endTime!.seconds).toBeGreaterThanOrEqual(startTime!.seconds);
    expect(stored!.dueTime!.seconds).toBe(startTime!.seconds + 3600n);
    const { step } = await trajectories.getStep({ trajectoryId, stepNumber: 1n });
    expect(step?.states[0]?.prunedTime).toBeDefined();
    await runs.deleteRun({ runId: run!.id });
    expect(await listed()).toEqual([]);
  });

  it('S13, S14, F-24: a plan is applied as of its time, and the space of the states is free then', async () => {
    const { trajectories, states, retention } = client;
    const { trajectory } = await trajectories.createTrajectory({});
    const trajectoryId = trajectory!.id;
    const data = (i: number) => Buffer.alloc(8192, `${i} `.repeat(3));
    for (let i = 0; i < 6; i += 1) {
      const step = { stepNumber: BigInt(i), states: [{ name: 'env', data: data(i) }] };
      await trajectories.appendStep({ trajectoryId, step });
    }
    await trajectories.setTag({ trajectoryId, name: 'best', stepNumber: 1n });
    const policy = { states: { ...ENV, keepLast: 2n } };
    const plan = await collect(retention.planRetention({ policy }));
    const items = plan.flatMap((each) => each.items);
    expect(items.map(({ stepNumber, pins }) => [stepNumber, pins.length])).toEqual([
      [0n, 0],
      [2n, 0],
      [3n, 0],
      [1n, 1],
    ]);
    const { asOf, totals } = plan.at(-1)!;
    expect(totals).toMatchObject({ states: 3n, logicalBytes: 3n * 8192n });
    const applied = await collect(retention.applyRetention({ policy, asOf: asOf! }));
    expect(applied.flatMap((each) => each.items)).toEqual(items);
    const usage = (await collect(states.getStorageUsage({ trajectoryId }))).at(-1)!.usage!;
    // Each of the six states has a byte in the row of its step.
    expect(usage.states?.logicalBytes).toBe(3n * 8192n + 6n);
    const reference = { trajectoryId, stepNumber: 2n, name: 'env' };
    const refusal = await collect(states.getState({ reference })).catch((error: unknown) => error);
    expect(reasonOf(refusal)).toBe('STATE_PRUNED');
    expect(errorMetadata(refusal)).toMatchObject({ step_number: '2', name: 'env' });
    const { step } = await trajectories.getStep({ trajectoryId, stepNumber: 2n });
    expect(step?.states[0]).toMatchObject({ name: 'env', size: 8192n });
    expect(step?.states[0]?.prunedTime?.nanos).toBe(0);
    await trajectories.attachState({ trajectoryId, stepNumber: 2n, state: { name: 'env', data: data(2) } });
    const read = await collect(states.getState({ reference }));
    expect(Buffer.concat(read.map(({ chunk }) => chunk))).toEqual(data(2));
  });
});
