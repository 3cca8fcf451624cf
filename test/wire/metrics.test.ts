import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { type IncomingMessage, request } from 'node:http';
import type { DescService } from '@bufbuild/protobuf';
import { createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Role } from '../../gen/es/anabranch/v1/access_pb.js';
import { AdminService } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { ServerService } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { measureProcess } from '../../src/observe/metrics.ts';
import { packageVersion } from '../../src/version.ts';
import { ENGINES, type TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { withHeaders } from './headers.ts';
import { NOBODY } from './rpcs/scene.ts';

describe.each(ENGINES)('V8: metrics, on %s', (engine) => {
  let database: TestDatabase;
  let server: TestServer;
  const secrets = { every: '', own: '' };

  beforeAll(async () => {
    database = await createMigratedDatabase(engine);
    await using open = await startTestServer({ database });
    const admin = createClient(AdminService, createGrpcTransport({ baseUrl: open.url }));
    const keyOf = async (name: string, role: Role, namespace: string) =>
      (await admin.createKey({ name, role, namespaces: [namespace] })).secret;
    secrets.every = await keyOf('every', Role.READ, '*');
    secrets.own = await keyOf('own', Role.WRITE, 'team-a');
    await open.stop();
    server = await startTestServer({
      database,
      settings: { authenticated: true },
      // A server behind a pooler listens over this way only.
      flags: { metricsListen: '0', ...(database.directUrl && { directDatabase: database.directUrl }) },
      processMetrics: measureProcess(),
    });
  });
  afterAll(async () => {
    await server?.stop();
    await database?.drop();
  });

  const clientOf = <S extends DescService>(service: S, token: string) =>
    createClient(
      service,
      createGrpcTransport({
        baseUrl: server.url,
        interceptors: [withHeaders({ authorization: `Bearer ${token}` })],
      }),
    );
  const trajectoriesOf = (token: string) => clientOf(TrajectoryService, token);
  const text = async () => {
    const answer = await fetch(server.metricsUrl!);
    expect([answer.status, answer.headers.get('content-type')]).toEqual([200, expect.stringMatching(/^text\/plain; /)]);
    return answer.text();
  };
  /** The value of each series, as of now. The CPU time of the process is another one in each text. */
  const scrape = async () => {
    const before = await text();
    let now = before;
    while (now === before) now = await text();
    const lines = now.split('\n').filter((line) => line !== '' && !line.startsWith('#'));
    return new Map(
      lines.map((line) => {
        const at = line.lastIndexOf(' ');
        return [line.slice(0, at), Number(line.slice(at + 1))] as const;
      }),
    );
  };

  const level = async (name: string) => (await scrape()).get(`anabranch_${name}`);

  it('count calls by method and code, failures by reason, refused credentials, and acked steps', async () => {
    const before = await scrape();
    const trajectories = trajectoriesOf(secrets.own);
    const { trajectory } = await trajectories.createTrajectory({});
    const trajectoryId = trajectory!.id;
    for (let i = 0n; i < 3n; i += 1n) await trajectories.appendStep({ trajectoryId, step: { stepNumber: i } });
    await trajectories.appendStep({ trajectoryId, step: { stepNumber: 2n } }); // a repetition
    await trajectories.getTrajectory({ trajectoryId: NOBODY }).catch(() => undefined);
    for await (const _ of trajectories.readSteps({ trajectoryId }));
    await trajectoriesOf('anb_wrong')
      .listTrajectories({})
      .catch(() => undefined);
    const after = await scrape();
    const rise = (series: string) => after.get(series)! - (before.get(series) ?? 0);
    const calls = (method: string, code = 'OK') =>
      rise(`anabranch_call_seconds_count{method="TrajectoryService/${method}",code="${code}"}`);
    expect([calls('CreateTrajectory'), calls('AppendStep'), calls('ReadSteps')]).toEqual([1, 4, 1]);
    expect(calls('GetTrajectory', 'NOT_FOUND')).toBe(1);
    expect(rise('anabranch_call_errors_total{reason="TRAJECTORY_NOT_FOUND"}')).toBe(1);
    expect(rise('anabranch_refused_credentials_total')).toBe(1);
    expect(rise('anabranch_acked_steps_total')).toBe(3);
    expect(rise('anabranch_acked_bytes_total')).toBeGreaterThan(0);
    expect(rise('anabranch_commit_group_steps_count')).toBe(4);
    expect(after.get('anabranch_calls_running')).toBe(0);
  });

  it('show who is connected, follows, and waits', async () => {
    const trajectories = trajectoriesOf(secrets.own);
    const { trajectory } = await trajectories.createTrajectory({});
    const left = new AbortController();
    const follow = async () => {
      const steps = trajectories.readSteps({ trajectoryId: trajectory!.id, follow: true }, { signal: left.signal });
      for await (const _ of steps);
    };
    const following = follow().catch(() => undefined);
    await expect.poll(() => level('followers')).toBe(1);
    expect(await level('connections')).toBeGreaterThan(0);
    expect(await level('calls_running')).toBe(1);
    left.abort();
    await following;
    await expect.poll(() => level('followers')).toBe(0);
  });

  it('have those of the process, and of jobs in the background', async () => {
    const found = [...(await scrape()).keys()];
    for (const name of [
      'nodejs_eventloop_lag_p99_seconds',
      'nodejs_heap_size_used_bytes',
      'nodejs_external_memory_bytes',
    ])
      expect(found).toContain(name);
    const jobs = async () => [...(await scrape()).keys()].filter((name) => name.startsWith('anabranch_job_runs_total'));
    const sweeps = ['failed', 'done'].map(
      (outcome) => `anabranch_job_runs_total{background_job="sweep of leases",outcome="${outcome}"}`,
    );
    await expect.poll(jobs).toEqual(expect.arrayContaining(sweeps));
  });

  it('have what the database does, and the queue of rollouts', async () => {
    const all = await scrape();
    expect(all.get(`anabranch_info{version="${packageVersion()}",engine="${database.engine}"}`)).toBe(1);
    expect(all.get('anabranch_rollouts_pending')).toBe(0);
    expect(all.get('anabranch_leases_ended')).toBe(0);
    expect(all.get('anabranch_stored_bytes')).toBeGreaterThan(0);
    expect(all.get('anabranch_unmerged_trajectories')).toBeDefined();
    expect(all.has('anabranch_wal_bytes')).toBe(database.engine === 'sqlite');
    expect(all.get('anabranch_database_listening')).toBe(database.engine === 'sqlite' ? undefined : 1);
    const pool = database.engine === 'sqlite' ? 'writes' : 'appends';
    expect(all.get(`anabranch_database_connections_most{pool="${pool}"}`)).toBeGreaterThan(0);
    const commits = all.get('anabranch_statement_seconds_count{statement="commit"}')!;
    expect(commits).toBeGreaterThan(0);
    expect(all.get('anabranch_statement_seconds_bucket{le="+Inf",statement="commit"}')).toBe(commits);
  });

  it('show who watches a run, what is leased, and which claims wait', async () => {
    const [runs, rollouts] = [clientOf(RunService, secrets.own), clientOf(RolloutService, secrets.own)];
    const { run } = await runs.createRun({});
    const runId = run!.id;
    const { stage } = await runs.getOrCreateStage({ runId, kind: StageKind.EVAL, number: 0n });
    const stageId = stage!.id;
    const left = new AbortController();
    const { signal } = left;
    const watch = clientOf(ServerService, secrets.own).watch({ subjects: { it: { run: { runId } } } }, { signal });
    await watch[Symbol.asyncIterator]().next();
    expect(await level('watchers')).toBe(1);
    await rollouts.createRollouts({ stageId, rollouts: [{ groupNumber: 0n, number: 0n }] });
    await expect.poll(() => level('rollouts_pending'), { timeout: 10_000 }).toBe(1);
    await rollouts.claimRollouts({ stageId, workerId: 'w' });
    await expect.poll(() => level('leases_live'), { timeout: 10_000 }).toBe(1);
    expect(await level('rollouts_pending')).toBe(0);
    const waiting = rollouts.claimRollouts({ stageId, workerId: 'w', wait: { seconds: 30n } }, { signal });
    await expect.poll(() => level('claims_waiting')).toBe(1);
    left.abort();
    await waiting.catch(() => undefined);
    await expect.poll(async () => [await level('claims_waiting'), await level('watchers')]).toEqual([0, 0]);
  });

  it('may be asked for often: neither is the database asked nor the text written each time', async () => {
    const counts = () =>
      scrape().then((all) => all.get('anabranch_statement_seconds_count{statement="select rollouts"}')!);
    const before = await counts();
    const texts = new Set<string>();
    for (let i = 0; i < 100; i += 1) texts.add(await text());
    expect(texts.size).toBeLessThan(50);
    // Sweeps of leases and stale runs go on meanwhile.
    expect((await counts()) - before).toBeLessThan(50);
  });

  it('are on the main port for credentials of all namespaces only, and elsewhere alone', async () => {
    const ask = async (token?: string, method = 'GET') =>
      (
        await fetch(`${server.url}/metrics`, {
          method,
          headers: token === undefined ? {} : { authorization: `Bearer ${token}` },
        })
      ).status;
    expect([await ask(), await ask(secrets.own), await ask(secrets.every)]).toEqual([401, 403, 200]);
    expect(await ask(secrets.every, 'POST')).toBe(405);
    const other = new URL('/anabranch.v1.ServerService/GetServerInfo', server.metricsUrl);
    expect((await fetch(other, { method: 'POST', body: '{}' })).status).toBe(404);
    const foreign = request(server.metricsUrl!, { headers: { host: 'evil.example' } }).end();
    const [answer] = (await once(foreign, 'response')) as [IncomingMessage];
    expect(answer.resume().statusCode).toBe(421);
  });

  it('are those that docs/observability.md lists', async () => {
    const text = await (await fetch(server.metricsUrl!)).text();
    const served = [...text.matchAll(/^# TYPE (anabranch_\w+)/gm)].map(([, name]) => name);
    const listed = [...readFileSync('docs/observability.md', 'utf8').matchAll(/`(anabranch_\w+)`/g)].map(
      ([, name]) => name,
    );
    expect([...new Set(listed)].sort()).toEqual(served.sort());
  });
});
