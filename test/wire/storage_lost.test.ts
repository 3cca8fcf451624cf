import { randomUUID } from 'node:crypto';
import { linkSync, renameSync, rmSync } from 'node:fs';
import { createClient } from '@connectrpc/connect';
import { createGrpcTransport, Http2SessionManager } from '@connectrpc/connect-node';
import { describe, expect, it } from 'vitest';
import { Health, HealthCheckResponse_ServingStatus as Serving } from '../../gen/es/grpc/health/v1/health_pb.js';
import { connectClient, reasonOf } from '../../src/client/index.ts';
import { sqlitePath } from '../store/sql.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { spawnServer } from '../support/spawned-server.ts';

describe.concurrent('a server whose file is lost', () => {
  it.each([
    ['is removed', (file: string) => rmSync(file)],
    ['is renamed', (file: string) => renameSync(file, `${file}.old`)],
    ['gets a hard link', (file: string) => linkSync(file, `${file}.link`)],
  ])('A1, D7: when the file %s, it acks nothing more, is NOT_SERVING, logs once, and exits with 1', async (_, lose) => {
    await using database = await createMigratedDatabase('sqlite');
    await using server = await spawnServer({ database: database.url });
    const sessionManager = new Http2SessionManager(server.url);
    const health = createClient(Health, createGrpcTransport({ baseUrl: server.url, sessionManager }));
    const watched = health.watch({})[Symbol.asyncIterator]();
    expect((await watched.next()).value).toMatchObject({ status: Serving.SERVING });
    const client = connectClient({ address: server.url });
    const trajectoryId = randomUUID();
    await client.trajectories.createTrajectory({ trajectoryId });
    const append = (stepNumber: bigint) => client.trajectories.appendStep({ trajectoryId, step: { stepNumber } });
    await append(0n);

    lose(sqlitePath(database));
    let error: unknown;
    for (let n = 1n; error === undefined; n += 1n) {
      await append(n).catch((thrown: unknown) => {
        error = thrown;
      });
    }
    expect(reasonOf(error)).toBe('STORAGE_LOST');
    expect((await watched.next()).value).toMatchObject({ status: Serving.NOT_SERVING });
    client.close();
    expect(await server.exited).toEqual({ code: 1, signal: null });
    const log = server.output().split('\n');
    expect(log.filter((line) => line.includes(sqlitePath(database)) && line.includes('start again'))).toHaveLength(1);
    expect(log.at(-1)).toBe('The server has stopped, because the file of its database was lost.');
  });
});
