import { createClient } from '@connectrpc/connect';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { appendBatch, errorMetadata, reasonOf, retryDelayMs } from '../../src/client/index.ts';
import { LIMITS } from '../../src/domain/limits.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { WIRES } from './wires.ts';

describe.each(ENGINES)('AppendBatch, on %s', (engine) => {
  let server: TestServer;
  beforeAll(async () => {
    server = await startTestServer({ engine });
  });
  afterAll(() => server.stop());

  const newId = async (client: ReturnType<typeof clientOver>) =>
    (await client.trajectories.createTrajectory({})).trajectory!.id;

  const clientOver = ({ transport }: (typeof WIRES)[number]) => ({
    trajectories: createClient(TrajectoryService, transport(server.url)),
  });

  it.each(WIRES)('W14: stores what it can, and says what it cannot, over $name', async (wire) => {
    const client = clientOver(wire);
    const ids = await Promise.all(Array.from({ length: 4 }, () => newId(client)));
    const entries = ids.map((trajectoryId, i) => ({
      trajectoryId,
      writerId: 'mine',
      steps: [{ stepNumber: BigInt(i === 2 ? 7 : 0), reward: i }],
      ...(i === 1 ? { seal: { status: Status.COMPLETED, message: 'done' } } : {}),
    }));
    const [first, sealed, late, last] = await appendBatch(client, entries);
    expect(first).toMatchObject({ stored: true, nextStepNumber: 1n, duplicateSteps: 0n, epoch: 1n });
    expect([sealed?.stored, last?.stored]).toEqual([true, true]);
    if (late?.stored !== false) throw new Error('a gap was stored');
    expect([reasonOf(late.error), retryDelayMs(late.error)]).toEqual(['STEP_GAP', undefined]);
    expect(errorMetadata(late.error)).toEqual({ step_number: '7', next_step_number: '0' });
    const { trajectory } = await client.trajectories.getTrajectory({ trajectoryId: ids[1]! });
    expect(trajectory).toMatchObject({ status: Status.COMPLETED, writerEpoch: 1n, writerId: 'mine' });
    const again = await appendBatch(client, entries);
    expect(again.map((result) => result.stored && result.duplicateSteps)).toEqual([1n, 1n, false, 1n]);
  });

  it('W14: is JSON for programs without protos', async () => {
    const id = await newId(clientOver(WIRES[0]!));
    const post = async (body: unknown) => {
      const response = await fetch(`${server.url}/anabranch.v1.TrajectoryService/AppendBatch`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(body),
      });
      return [response.status, await response.json()];
    };
    const entries = [0, 2].map((stepNumber) => ({ trajectoryId: id.toUpperCase(), steps: [{ stepNumber }] }));
    expect(await post({ entries })).toMatchObject([
      200,
      {
        results: [
          { nextStepNumber: '1', duplicateSteps: '0', uid: expect.any(String), commitTime: expect.any(String) },
          { error: { code: 11, reason: 'STEP_GAP', metadata: { step_number: '2', next_step_number: '1' } } },
        ],
      },
    ]);
    expect(await post({ entries: [{ trajectoryId: id, stepz: [] }] })).toMatchObject([
      400,
      { code: 'invalid_argument' },
    ]);
  });

  it('W14: a message without entries, with too many, or with a wrong field outside of steps is refused as a whole', async () => {
    const client = clientOver(WIRES[0]!);
    const trajectoryId = await newId(client);
    const entry = { trajectoryId, steps: [{ stepNumber: 0n }] };
    const many = Array.from({ length: LIMITS.batchEntries + 1 }, () => entry);
    for (const entries of [
      [],
      many,
      [entry, { ...entry, trajectoryId: 'x' }],
      [entry, { ...entry, writerEpoch: -1n }],
    ]) {
      expect(await appendBatch(client, entries).catch(reasonOf)).toBe('INVALID_REQUEST');
    }
    const text = 'x'.repeat(LIMITS.messageBytes);
    const large = { trajectoryId, steps: [{ stepNumber: 0n, actions: [{ content: { text } }] }] };
    expect(await appendBatch(client, [large]).catch(reasonOf)).toBe('MESSAGE_TOO_LARGE');
    expect((await client.trajectories.getTrajectory({ trajectoryId })).trajectory?.nextStepNumber).toBe(0n);
  });

  it('W14: the largest response has less than 1 MiB', async () => {
    const client = clientOver(WIRES[0]!);
    const trajectoryId = await newId(client);
    const writerId = '\u{10ffff}'.repeat(32);
    await appendBatch(client, [{ trajectoryId, writerId }]);
    const name = 'a'.repeat(200);
    const entries = Array.from({ length: LIMITS.batchEntries }, (_, i) =>
      i % 2 === 0
        ? { trajectoryId, seal: { status: Status.FAILED } }
        : { trajectoryId, steps: [{ infoJson: `{"${name}` }] },
    );
    const { results } = await client.trajectories.appendBatch({ entries });
    expect(results.every(({ error }) => error !== undefined)).toBe(true);
    expect(Buffer.byteLength(JSON.stringify(results.map(({ error }) => error)))).toBeLessThan(LIMITS.messageBytes);
  });
});
