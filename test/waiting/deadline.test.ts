import { randomUUID } from 'node:crypto';
import type { ClientHttp2Session } from 'node:http2';
import { create, type MessageInitShape, toJsonString } from '@bufbuild/protobuf';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  CreateTrajectoryRequestSchema,
  ListTrajectoriesRequestSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type OutsideSql, outsideSql } from '../store/sql.ts';
import { ENGINES, type Engine } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { envelope, http2Session, RawCall, rawCall, until } from '../wire/raw.ts';

const TRAJECTORIES = '/anabranch.v1.TrajectoryService';
const DEADLINE_EXCEEDED = 4;
const OK = 0;

/**
 * Rows with more labels than the API allows: a statement that looks for 16 labels of each takes many seconds unless it
 * is cancelled.
 */
const ROWS = 4000;
const LABELS = Object.fromEntries(Array.from({ length: 1000 }, (_, i) => [`label-${i}`, 'value']));
/** The last label matches no row. */
const FILTER = { ...Object.fromEntries(Object.entries(LABELS).slice(-16)), 'label-999': 'another value' };
const NO_MORE_THAN_A_NAME = { labels: { missing: 'label' } };

describe.each(ENGINES)('A6: deadlines and cancellations reach the database, on %s', (engine) => {
  let server: TestServer;
  let session: ClientHttp2Session;
  let sql: OutsideSql;
  beforeAll(async () => {
    server = await startTestServer({ engine });
    session = await http2Session(server.url);
    sql = await outsideSql(server.database);
    const named = { trajectoryId: randomUUID() };
    await rawCall(session, `${TRAJECTORIES}/CreateTrajectory`, envelope(CreateTrajectoryRequestSchema, named));
    await sql.rows(`update trajectories set labels = '${JSON.stringify(LABELS)}'`);
    await copyRows(sql, engine, ROWS);
  });
  afterAll(async () => {
    session?.close();
    await sql?.close();
    await server?.stop();
  });

  const list = (filter: MessageInitShape<typeof ListTrajectoriesRequestSchema>, timeout: string) =>
    rawCall(session, `${TRAJECTORIES}/ListTrajectories`, envelope(ListTrajectoriesRequestSchema, filter), {
      'grpc-timeout': timeout,
    });

  it('answers a gRPC call at its deadline, and serves the next one even after many such calls', async () => {
    for (let i = 0; i < 6; i += 1) {
      const { status } = await list({ labels: FILTER }, '100m');
      expect(status).toBe(DEADLINE_EXCEEDED);
    }
    // A kind of read not used before, so that it waits for the threads that run long jobs.
    expect((await list(NO_MORE_THAN_A_NAME, '50S')).status).toBe(OK);
    await until(() => server.counts().handlers === 0, 'all handlers have ended');
  });

  it('answers a Connect call at its deadline', async () => {
    const answer = await fetch(`${server.url}${TRAJECTORIES}/ListTrajectories`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'connect-timeout-ms': '100' },
      body: toJsonString(ListTrajectoriesRequestSchema, create(ListTrajectoriesRequestSchema, { labels: FILTER })),
    });
    expect(answer.status).toBe(504);
    expect(await answer.json()).toMatchObject({ code: 'deadline_exceeded' });
    await until(() => server.counts().handlers === 0, 'its handler has ended');
  });

  it('ends the statements of callers that cancel, both running and waiting ones', async () => {
    const calls = Array.from({ length: 12 }, () => {
      const call = new RawCall(session, `${TRAJECTORIES}/ListTrajectories`);
      call.stream.end(envelope(ListTrajectoriesRequestSchema, { labels: FILTER }));
      return call;
    });
    await until(() => server.counts().handlers === calls.length, 'all are served');
    for (const { stream } of calls) stream.close(8);
    await until(() => server.counts().handlers === 0, 'all handlers have ended');
    expect((await list(NO_MORE_THAN_A_NAME, '50S')).status).toBe(OK);
    if (engine === 'postgres') await expect.poll(() => activeStatements(sql)).toBe(0);
  });
});

/** Copies the only trajectory this many times, without the API. */
async function copyRows(sql: OutsideSql, engine: Engine, count: number): Promise<void> {
  const [row] = await sql.rows('select * from trajectories');
  const values: Readonly<Record<string, string>> = {
    tree: 't.tree + n.i',
    key: 't.key + n.i',
    id: engine === 'postgres' ? 'gen_random_uuid()' : 'lower(hex(randomblob(16)))',
    uid: engine === 'postgres' ? 'gen_random_uuid()' : 'lower(hex(randomblob(16)))',
  };
  const columns = Object.keys(row ?? {});
  await sql.rows(`
    with recursive n(i) as (select 1 union all select i + 1 from n where i < ${count})
    insert into trajectories (${columns.join(', ')})
    select ${columns.map((column) => values[column] ?? `t.${column}`).join(', ')} from trajectories as t cross join n`);
}

async function activeStatements(sql: OutsideSql): Promise<number> {
  const text = `select 1 from pg_stat_activity where datname = current_database() and state = 'active' and pid <> pg_backend_pid()`;
  return (await sql.rows(text)).length;
}
