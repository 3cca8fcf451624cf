import { randomUUID } from 'node:crypto';
import { renameSync, rmSync } from 'node:fs';
import { createClient } from '@connectrpc/connect';
import { createGrpcTransport, Http2SessionManager } from '@connectrpc/connect-node';
import { describe, expect, it } from 'vitest';
import { Health, HealthCheckResponse_ServingStatus as Serving } from '../../gen/es/grpc/health/v1/health_pb.js';
import { connectClient, readSteps, reasonOf } from '../../src/client/index.ts';
import { sqlitePath } from '../store/sql.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { spawnServer } from '../support/spawned-server.ts';
import { startTestServer } from '../support/test-server.ts';

/** Appends steps until a call fails. Returns how many were acked, and the error. */
async function appendUntilRefused(
  url: string,
  trajectoryId: string,
  onAck: (acked: bigint) => void = () => {},
): Promise<{ acked: bigint; error: unknown }> {
  const client = connectClient({ address: url });
  try {
    for (let acked = 0n; ; acked += 1n) {
      try {
        onAck(acked);
        await client.trajectories.appendStep({ trajectoryId, step: { stepNumber: acked } });
      } catch (error) {
        return { acked, error };
      }
    }
  } finally {
    client.close();
  }
}

async function createTrajectory(url: string): Promise<string> {
  const trajectoryId = randomUUID();
  const client = connectClient({ address: url });
  await client.trajectories.createTrajectory({ trajectoryId });
  client.close();
  return trajectoryId;
}

describe('a server whose file is lost', () => {
  it('A1, D7: refuses writes with STORAGE_LOST, and is NOT_SERVING', async () => {
    await using server = await startTestServer();
    const sessionManager = new Http2SessionManager(server.url);
    const health = createClient(Health, createGrpcTransport({ baseUrl: server.url, sessionManager }));
    const watched = health.watch({})[Symbol.asyncIterator]();
    expect((await watched.next()).value).toMatchObject({ status: Serving.SERVING });
    const trajectoryId = await createTrajectory(server.url);
    rmSync(sqlitePath(server.database));
    expect(reasonOf((await appendUntilRefused(server.url, trajectoryId)).error)).toBe('STORAGE_LOST');
    expect((await watched.next()).value).toMatchObject({ status: Serving.NOT_SERVING });
    expect((await fetch(`${server.url}/healthz`)).status).toBe(503);
    const other = await appendUntilRefused(server.url, trajectoryId);
    expect({ acked: other.acked, reason: reasonOf(other.error) }).toEqual({ acked: 0n, reason: 'STORAGE_LOST' });
  });

  it('A1, D7: logs it once, exits with 1, and has every acked step when the file is put back', async () => {
    await using database = await createMigratedDatabase('sqlite');
    const file = sqlitePath(database);
    let acked: bigint;
    let trajectoryId: string;
    {
      await using server = await spawnServer({ database: database.url });
      trajectoryId = await createTrajectory(server.url);
      ({ acked } = await appendUntilRefused(server.url, trajectoryId, (steps) => {
        if (steps === 20n) renameSync(file, `${file}.old`);
      }));
      expect(acked).toBeGreaterThanOrEqual(20n);
      expect(await server.exited).toEqual({ code: 1, signal: null });
      const log = server.output().split('\n');
      expect(log.filter((line) => line.includes(`${file} was removed, renamed or replaced`))).toHaveLength(1);
      expect(log.at(-1)).toBe('The server has stopped, because the file of its database was lost.');
    }
    renameSync(`${file}.old`, file);
    await using server = await startTestServer({ database });
    const client = connectClient({ address: server.url });
    let stored = 0n;
    for await (const { step } of readSteps(client, { trajectoryId })) stored = step.stepNumber + 1n;
    client.close();
    expect(stored).toBeGreaterThanOrEqual(acked);
  });
});
