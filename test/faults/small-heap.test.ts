import { randomUUID } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import {
  AppendBatchRequestSchema,
  AppendStepRequestSchema,
  AppendStepsRequestSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { connectClient } from '../../src/client/index.ts';
import { LIMITS } from '../../src/domain/limits.ts';
import { ENGINES } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { spawnServer } from '../support/spawned-server.ts';
import { envelope, http2Session, inEnvelope, type Outcome, rawCall } from '../wire/raw.ts';

const SERVICE = '/anabranch.v1.TrajectoryService';
const RESOURCE_EXHAUSTED = 8;
const EMPTY_STEP = Buffer.from([0x12, 0]);
const CALLS = 16;
/** Observations of each step of a message. */
const PARTS = 28;

interface Append {
  readonly rpc: string;
  readonly body: Buffer;
}

/** Each appends to a trajectory that has no steps. */
type Attack = (trajectoryId: string, messageValues: number) => Append;

const ATTACKS: Readonly<Record<string, Attack>> = {
  'frames of as many steps as a large heap admits': (trajectoryId) => {
    const open = envelope(AppendStepsRequestSchema, { open: { trajectoryId, writerId: 'w' } });
    const steps = inEnvelope(Buffer.alloc(2 * LIMITS.messageValues, EMPTY_STEP));
    return { rpc: 'AppendSteps', body: Buffer.concat([open, steps]) };
  },
  'batches of as many values as the server admits': (trajectoryId, messageValues) => {
    const observations = Array.from({ length: PARTS }, () => ({}));
    const count = Math.floor(messageValues / (PARTS * 2 + 2));
    const steps = Array.from({ length: count }, (_, i) => ({ stepNumber: BigInt(i), observations }));
    const body = envelope(AppendBatchRequestSchema, { entries: [{ trajectoryId, writerId: 'w', steps }] });
    return { rpc: 'AppendBatch', body };
  },
  'steps of long texts': (trajectoryId) => {
    const step = { stepNumber: 0n, observations: [{ content: { text: 'x'.repeat(1_000_000) } }] };
    return { rpc: 'AppendStep', body: envelope(AppendStepRequestSchema, { trajectoryId, step }) };
  },
};

describe.each(ENGINES)('a heap of 128 MiB, on %s', (engine) => {
  it('A11, MS4: large messages are refused when the heap has no room for them, and the server goes on', async () => {
    await using database = await createMigratedDatabase(engine);
    await using server = await spawnServer({ database: database.url, nodeArgs: ['--max-old-space-size=128'] });
    let ended = false;
    void server.exited.then(() => (ended = true));
    const client = connectClient({ address: server.url });
    const { limits } = await client.server.getServerInfo({});
    const messageValues = Number(limits.messageValues);
    expect(messageValues).toBeLessThan(LIMITS.messageValues);
    expect(limits.waitingBytes).toBeLessThan(LIMITS.waitingBytes);
    const sessions = await Promise.all(Array.from({ length: 4 }, () => http2Session(server.url)));
    const refusals: Outcome[] = [];
    for (const [name, attack] of Object.entries(ATTACKS)) {
      const appends: Append[] = [];
      for (let i = 0; i < CALLS; i += 1) {
        const trajectoryId = randomUUID();
        await client.trajectories.createTrajectory({ trajectoryId });
        appends.push(attack(trajectoryId, messageValues));
      }
      const calls = appends.map(({ rpc, body }, i) => rawCall(sessions[i % 4]!, `${SERVICE}/${rpc}`, body));
      const all = Promise.all(calls);
      let answered = false;
      void all.then(() => (answered = true));
      do {
        await client.trajectories.createTrajectory({});
        expect((await fetch(`${server.url}/healthz`)).status).toBe(200);
      } while (!answered && !ended);
      for (const outcome of await all) {
        expect([0, RESOURCE_EXHAUSTED], `${name}: ${outcome.message}`).toContain(outcome.status);
        if (outcome.status !== 0) refusals.push(outcome);
      }
    }
    expect(refusals.length).toBeGreaterThanOrEqual(CALLS);
    // The memory is free again: a large message is accepted, as soon as its garbage is collected.
    const trajectoryId = randomUUID();
    await client.trajectories.createTrajectory({ trajectoryId });
    const { rpc, body } = ATTACKS['batches of as many values as the server admits']!(trajectoryId, messageValues);
    let outcome: Outcome;
    do {
      outcome = await rawCall(sessions[0]!, `${SERVICE}/${rpc}`, body);
      await client.trajectories.createTrajectory({});
    } while (outcome.status === RESOURCE_EXHAUSTED);
    expect(outcome.status, outcome.message).toBe(0);
    for (const session of sessions) session.destroy();
    client.close();
    expect(ended).toBe(false);
  });
});
