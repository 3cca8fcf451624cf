import type { MessageInitShape } from '@bufbuild/protobuf';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type {
  PlanRetentionRequestSchema,
  RetentionPolicySchema,
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

describe.each(ENGINES)('RetentionService, on %s', (engine) => {
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

  it.each(BAD)('S14: %s is refused by name, and nothing is removed', async (_, request) => {
    const { policy } = request as { policy?: MessageInitShape<typeof RetentionPolicySchema> };
    const sent = policy === undefined ? {} : { policy };
    const plan = await collect(client.retention.planRetention(sent)).catch((error: unknown) => error);
    const applied = await collect(client.retention.applyRetention(sent)).catch((error: unknown) => error);
    expect([reasonOf(plan), reasonOf(applied)]).toEqual(['INVALID_REQUEST', 'INVALID_REQUEST']);
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
