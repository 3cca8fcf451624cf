import { createClient } from '@connectrpc/connect';
import { createGrpcTransport, Http2SessionManager } from '@connectrpc/connect-node';
import { describe, expect, it } from 'vitest';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { Health, HealthCheckResponse_ServingStatus as Serving } from '../../gen/es/grpc/health/v1/health_pb.js';
import { outsideSql } from '../store/sql.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { wrappedStore } from '../support/wrapped_store.ts';

const PROBES = ['/livez', '/readyz', '/healthz', '/health'] as const;

async function statuses({ url }: Pick<TestServer, 'url'>): Promise<Record<string, number>> {
  const asked = PROBES.map(async (path) => [path, (await fetch(url + path)).status] as const);
  return Object.fromEntries(await Promise.all(asked));
}

const ALL_WELL = { '/livez': 200, '/readyz': 200, '/healthz': 200, '/health': 200 };
const NOT_READY = { ...ALL_WELL, '/readyz': 503 };

describe.each(ENGINES)('A14: probes, on %s', (engine) => {
  it('say that a server lives and is ready, without a credential', async () => {
    await using server = await startTestServer({ engine, settings: { authenticated: true } });
    await expect.poll(() => statuses(server), { timeout: 5000 }).toEqual(ALL_WELL);
    expect(await (await fetch(`${server.url}/readyz?verbose`)).text()).toBe('ok');
    for (const path of PROBES) {
      const posted = await fetch(server.url + path, { method: 'POST' });
      expect([posted.status, posted.headers.get('allow')]).toEqual([405, 'GET, HEAD']);
    }
  });

  it('say that it is not ready while its schema is of another version', async () => {
    await using server = await startTestServer({ engine });
    const sql = await outsideSql(server.database);
    const table = engine === 'postgres' ? 'anabranch.kysely_migration' : 'kysely_migration';
    const add = (name: string) => sql.rows(`insert into ${table} (name, timestamp) values ('${name}', '2027-01-01')`);
    await add('9999_next');
    await expect.poll(() => statuses(server), { timeout: 5000 }).toEqual(NOT_READY);
    expect(await (await fetch(`${server.url}/readyz`)).text()).toContain('another version');
    // An upgrade adds this one, and the server of the release before goes on.
    await sql.rows(`update ${table} set name = '9999_next_after_0001' where name = '9999_next'`);
    await expect.poll(() => statuses(server), { timeout: 5000 }).toEqual(ALL_WELL);
    await sql.rows(`update ${table} set name = '0001_other' where name like '0001%'`);
    await expect.poll(() => statuses(server), { timeout: 5000 }).toEqual(NOT_READY);
    await sql.close();
  });

  it('say that it is not ready while the database does not answer, and do not wait for it', async () => {
    const silent = Promise.withResolvers<void>();
    let isSilent = false;
    await using server = await startTestServer({
      engine,
      wrap: (store) => wrappedStore(store, { ping: () => (isSilent ? silent.promise : store.ping()) }),
    });
    await expect.poll(() => statuses(server), { timeout: 5000 }).toEqual(ALL_WELL);
    isSilent = true;
    await expect.poll(() => statuses(server), { timeout: 5000 }).toEqual(NOT_READY);
    isSilent = false;
    silent.resolve();
    await expect.poll(() => statuses(server), { timeout: 5000 }).toEqual(ALL_WELL);
  });

  it('A2: say that it is not ready once it leaves, while it serves calls and new connections', async () => {
    await using server = await startTestServer({ engine, flags: { lameDuck: '1' } });
    const connect = () =>
      createGrpcTransport({ baseUrl: server.url, sessionManager: new Http2SessionManager(server.url) });
    const health = createClient(Health, connect());
    const watched = health.watch({})[Symbol.asyncIterator]();
    expect((await watched.next()).value).toMatchObject({ status: Serving.SERVING });
    const left = server.leave().then(() => 'left');
    expect(await statuses(server)).toEqual({ '/livez': 200, '/readyz': 503, '/healthz': 503, '/health': 503 });
    expect((await watched.next()).value).toMatchObject({ status: Serving.NOT_SERVING });
    expect((await health.check({})).status).toBe(Serving.NOT_SERVING);
    const late = createClient(Health, connect()).watch({})[Symbol.asyncIterator]();
    expect((await late.next()).value).toMatchObject({ status: Serving.NOT_SERVING });
    expect((await createClient(TrajectoryService, connect()).createTrajectory({})).trajectory).toBeDefined();
    const ends = Promise.all([watched, late].map((each) => each.next().catch((error: unknown) => String(error))));
    expect(await Promise.race([left, ends])).toBe('left');
    await server.stop();
    for (const end of await ends) expect(end).toContain('unavailable');
  });
});
