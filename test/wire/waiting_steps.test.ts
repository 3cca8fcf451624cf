import { randomUUID } from 'node:crypto';
import process from 'node:process';
import { pino } from 'pino';
import { expect, it } from 'vitest';
import { AppendBatchRequestSchema, AppendStepsRequestSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { connectClient } from '../../src/client/index.ts';
import { loadConfig } from '../../src/config/config.ts';
import { serveStore } from '../../src/server.ts';
import type { Store } from '../../src/store/contract/store.ts';
import { openOn } from '../store/on_store.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { sharedValidator } from '../support/shared_validator.ts';
import { envelope, http2Session, RawCall, until } from './raw.ts';

const SERVICE = '/anabranch.v1.TrajectoryService';
const STREAMS = 10;
const STEPS = 1000;
/** Room for two messages. */
const WAITING_BYTES = 700_000;

it.each(['application/grpc', 'application/grpc-web+proto'])(
  'MS3: %s: small messages of many steps wait while the database does, and all are stored',
  async (type) => {
    await using database = await createMigratedDatabase('sqlite');
    const gate = Promise.withResolvers<void>();
    const server = await serve(database, gate.promise);
    const client = connectClient({ address: server.url });
    const wire = await http2Session(server.url);
    const ids = Array.from({ length: STREAMS }, () => randomUUID());
    const headers = { 'content-type': type };
    const steps = Array.from({ length: STEPS }, (_, i) => ({ stepNumber: BigInt(i) }));
    const streams = await Promise.all(
      ids.map(async (trajectoryId) => {
        await client.trajectories.createTrajectory({ trajectoryId });
        const stream = new RawCall(wire, `${SERVICE}/AppendSteps`, headers);
        stream.stream.write(envelope(AppendStepsRequestSchema, { open: { trajectoryId, writerId: 'w' } }));
        await stream.messages(1);
        return stream;
      }),
    );
    for (const { stream } of streams) stream.end(envelope(AppendStepsRequestSchema, { steps }));
    await until(() => server.counts().waitingBytes >= WAITING_BYTES, 'the memory for steps is taken');
    const unary = { trajectoryId: ids[0]!, steps: steps.map((_, i) => ({ stepNumber: BigInt(STEPS + i) })) };
    const batch = new RawCall(wire, `${SERVICE}/AppendBatch`, headers);
    batch.stream.end(envelope(AppendBatchRequestSchema, { entries: [{ ...unary, writerEpoch: 1n }] }));
    await until(() => server.counts().requests === STREAMS + 1, 'the call has arrived');
    // The server has read what came before this call on the same connection, and answers it meanwhile.
    expect((await client.trajectories.getTrajectory({ trajectoryId: ids[0]! })).trajectory!.nextStepNumber).toBe(0n);
    expect(server.counts().waitingBytes).toBeLessThan(WAITING_BYTES + 2 * STEPS * 400);
    gate.resolve();
    for (const { outcome } of streams) expect((await outcome).http).toBe(200);
    expect((await batch.outcome).http).toBe(200);
    for (const [i, trajectoryId] of ids.entries()) {
      const { trajectory } = await client.trajectories.getTrajectory({ trajectoryId });
      expect(trajectory!.nextStepNumber).toBe(BigInt(i === 0 ? 2 * STEPS : STEPS));
    }
    client.close();
    wire.destroy();
    await until(() => Object.values(server.counts()).every((count) => count === 0), 'nothing waits');
    await server.drain();
  },
);

/** Appends of its store wait for the gate. */
async function serve(database: Parameters<typeof openOn>[0] & { readonly url: string }, gate: Promise<void>) {
  const store = await openOn(database);
  const gated = new Proxy(store, {
    get: (target, name) => {
      if (name !== 'append') return Reflect.get(target, name);
      return async (...args: Parameters<Store['append']>) => {
        await gate;
        return target.append(...args);
      };
    },
  });
  const flags = { listen: '127.0.0.1:0', database: database.url };
  const config = loadConfig({ env: {}, flags, cwd: '/', readFile: () => undefined });
  const logger = pino({ level: process.env.TEST_LOG_LEVEL ?? 'silent' });
  const settings = { waitingBytes: WAITING_BYTES };
  return serveStore(gated, config, { logger, validator: sharedValidator(), settings });
}
