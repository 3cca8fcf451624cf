import { randomUUID } from 'node:crypto';
import { createClient } from '@connectrpc/connect';
import { createConnectTransport, createGrpcTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { StepOrder, TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { ENGINES, type TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { type SpawnedServer, spawnServer } from '../support/spawned-server.ts';
import { AppendCall } from '../wire/append-call.ts';

const STEPS = 4_000;
const FRAME = 500;
const APPENDS = 20;
const READERS = 40;
/**
 * The average number of steps that a reader may get during one append: a reader that never pauses gets tens of
 * thousands, one that yields to others some hundred.
 */
const MOST_STEPS = 5_000;

const OBSERVATION = JSON.stringify({ position: Array.from({ length: 40 }, (_, i) => i * 1.25) });

const TRANSPORTS = [
  ['Connect', (baseUrl: string) => createConnectTransport({ baseUrl, httpVersion: '2' })],
  ['gRPC', (baseUrl: string) => createGrpcTransport({ baseUrl })],
] as const;

describe.each(ENGINES)('A5: a writer beside greedy readers, on %s', (engine) => {
  let database: TestDatabase;
  let server: SpawnedServer;
  /** A trajectory with many steps. */
  let long: string;
  beforeAll(async () => {
    database = await createMigratedDatabase(engine);
    server = await spawnServer({ database: database.url });
    long = await filled(createClient(TrajectoryService, createGrpcTransport({ baseUrl: server.url })));
  });
  afterAll(async () => {
    await server?.kill();
    await database?.drop();
  });

  it.each(TRANSPORTS)('is served while a reader by %s takes all steps it can', async (_name, transport) => {
    const reading = createClient(TrajectoryService, transport(server.url));
    const writing = createClient(TrajectoryService, createGrpcTransport({ baseUrl: server.url }));
    const { call } = await opened(writing);

    let over = false;
    let read = 0;
    const begun = Promise.withResolvers<void>();
    const reader = async () => {
      while (!over) {
        for await (const { steps } of reading.readSteps({ trajectoryId: long })) {
          read += steps.length;
          begun.resolve();
        }
      }
    };
    const ended = reader();
    await begun.promise;
    const before = read;
    for (let i = 0; i < APPENDS; i += 1) {
      await append(call, i);
      if (i % 10 === 0) expect((await fetch(`${server.url}/healthz`)).status).toBe(200);
    }
    const after = read;
    over = true;
    await ended;
    await call.close();
    expect((after - before) / APPENDS).toBeLessThan(MOST_STEPS);
  });

  it('is served before forty readers with slow statements, for its appends and its reads', async () => {
    const client = createClient(TrajectoryService, createGrpcTransport({ baseUrl: server.url }));
    const { call, trajectoryId } = await opened(client);
    let over = false;
    let answered = 0;
    const lists = Array.from({ length: READERS }, async () => {
      while (!over) {
        await client.listSteps({ trajectoryId: long, order: StepOrder.REWARD, descending: true, pageSize: 11 });
        answered += 1;
      }
    });
    await expect.poll(() => answered).toBeGreaterThan(READERS);
    const before = answered;
    for (let i = 0; i < 10; i += 1) {
      await append(call, i);
      await client.getTrajectory({ trajectoryId });
    }
    const after = answered;
    over = true;
    await Promise.all(lists);
    await call.close();
    // A call that waits behind all readers waits for at least as many answers as there are readers.
    expect((after - before) / 10).toBeLessThan(READERS / 2);
  });
});

/** Creates a trajectory with many steps. Returns its id. */
async function filled(client: Parameters<typeof AppendCall.open>[0]): Promise<string> {
  const { call, trajectoryId } = await opened(client);
  for (let from = 0; from < STEPS; from += FRAME) {
    const steps = Array.from({ length: FRAME }, (_, i) => ({
      stepNumber: BigInt(from + i),
      observations: [{ content: { json: OBSERVATION } }],
      reward: i,
    }));
    call.send({ steps });
  }
  for (let end = 0n; end < BigInt(STEPS); ) end = (await call.next())?.ack?.nextStepNumber ?? end;
  await call.close();
  return trajectoryId;
}

async function opened(client: Parameters<typeof AppendCall.open>[0]) {
  const trajectoryId = randomUUID();
  await client.createTrajectory({ trajectoryId });
  return { trajectoryId, ...(await AppendCall.open(client, { trajectoryId, writerId: 'w' })) };
}

async function append(call: AppendCall, number: number): Promise<void> {
  call.send({ steps: [{ stepNumber: BigInt(number), reward: 1 }] });
  expect((await call.next())?.ack?.nextStepNumber).toBe(BigInt(number + 1));
}
