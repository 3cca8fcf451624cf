import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import http, { type OutgoingHttpHeaders } from 'node:http';
import type { ClientHttp2Session } from 'node:http2';
import { buffer } from 'node:stream/consumers';
import { gzipSync } from 'node:zlib';
import { create, type DescMessage, type MessageInitShape, toBinary } from '@bufbuild/protobuf';
import pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { ClaimRolloutsRequestSchema } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import {
  AppendBatchRequestSchema,
  AppendStepRequestSchema,
  AppendStepsRequestSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import { ON_POSTGRES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { envelope, http2Session, inEnvelope, RawCall, until } from './raw.ts';

const APPEND = '/anabranch.v1.TrajectoryService/AppendStep';
const APPEND_STEPS = '/anabranch.v1.TrajectoryService/AppendSteps';
const APPEND_BATCH = '/anabranch.v1.TrajectoryService/AppendBatch';
const CLAIM = '/anabranch.v1.RolloutService/ClaimRollouts';

/** An encoding of a unary request. */
interface Way {
  readonly name: string;
  readonly contentType: string;
  readonly encodingHeader: string;
  readonly enveloped: boolean;
}
const CONNECT: Way = {
  name: 'Connect',
  contentType: 'application/proto',
  encodingHeader: 'content-encoding',
  enveloped: false,
};
const GRPC: Way = {
  name: 'gRPC',
  contentType: 'application/grpc',
  encodingHeader: 'grpc-encoding',
  enveloped: true,
};
const GRPC_WEB: Way = { ...GRPC, name: 'gRPC-Web', contentType: 'application/grpc-web+proto' };

let server: TestServer;
let session: ClientHttp2Session;
let client: AnabranchClient;
let stageId: string;
let trajectoryId: string;

beforeAll(async () => {
  server = await startTestServer();
  session = await http2Session(server.url);
  client = connectClient({ address: server.url });
  const { run } = await client.runs.createRun({ initialStatus: Status.RUNNING });
  const { stage } = await client.runs.getOrCreateStage({ runId: run!.id, kind: StageKind.TRAIN_STEP, number: 0n });
  stageId = stage!.id;
  // The only rollout is leased, so further claims wait for it.
  await client.rollouts.createRollouts({ stageId, rollouts: [{ groupNumber: 0n, number: 0n }] });
  const { claims } = await client.rollouts.claimRollouts({ stageId, workerId: 'holder' });
  expect(claims).toHaveLength(1);
});
afterAll(async () => {
  session.destroy();
  client.close();
  await until(() => Object.values(server.counts()).every((count) => count === 0), 'nothing is open');
  await server.stop();
});
beforeEach(async () => {
  ({ id: trajectoryId } = (await client.trajectories.createTrajectory({ trajectoryId: randomUUID() })).trajectory!);
});

/** A request in this encoding: its headers and its body. */
function written<Desc extends DescMessage>(
  { contentType, encodingHeader, enveloped }: Way,
  schema: Desc,
  message: MessageInitShape<Desc>,
  compressed: boolean,
): { headers: OutgoingHttpHeaders; body: Buffer } {
  const bytes = toBinary(schema, create(schema, message));
  const data = compressed ? gzipSync(bytes) : bytes;
  return {
    headers: { 'content-type': contentType, ...(compressed && { [encodingHeader]: 'gzip' }) },
    body: enveloped ? inEnvelope(data, compressed ? 1 : 0) : Buffer.from(data),
  };
}

/** A call over HTTP/2. */
function call(path: string, { headers, body }: ReturnType<typeof written>, on = session): RawCall {
  const made = new RawCall(on, path, headers);
  made.stream.end(body);
  return made;
}

const claim = (way: Way) =>
  written(way, ClaimRolloutsRequestSchema, { stageId, workerId: 'w', wait: { seconds: 30n } }, true);

const append = (way: Way, textBytes: number, compressed = false, stepNumber = 0n) =>
  written(
    way,
    AppendStepRequestSchema,
    { trajectoryId, step: { stepNumber, observations: [{ content: { text: 'x'.repeat(textBytes) } }] } },
    compressed,
  );

const handlers = (count: number) => until(() => server.counts().handlers === count, `${count} handlers are running`);

async function endOf(trajectory: string): Promise<bigint> {
  return (await client.trajectories.getTrajectory({ trajectoryId: trajectory })).trajectory!.nextStepNumber;
}

describe('MS1: a slot ends when its message has reached the handler', () => {
  it.each([CONNECT, GRPC, GRPC_WEB])('$name: a compressed claim that waits delays no large message', async (way) => {
    const waiting = call(CLAIM, claim(way));
    let answered = false;
    void waiting.outcome.then(() => (answered = true));
    await handlers(1);
    for (const each of [CONNECT, GRPC, GRPC_WEB]) {
      const stepNumber = await endOf(trajectoryId);
      const outcome = await call(APPEND, append(each, 100_000, each === GRPC_WEB, stepNumber)).outcome;
      expect(outcome.http, each.name).toBe(200);
      expect(await endOf(trajectoryId), each.name).toBe(stepNumber + 1n);
    }
    expect(answered).toBe(false);
    waiting.stream.close(8);
    await handlers(0);
  });

  it.each([CONNECT, GRPC_WEB])(
    '$name over HTTP/1.1: a compressed claim that waits delays no large message',
    async (way) => {
      const send = (path: string, { headers, body }: ReturnType<typeof written>) => {
        const request = http.request(`${server.url}${path}`, { method: 'POST', headers, agent: false });
        request.on('error', () => undefined); // one call is cancelled at the end
        request.end(body);
        return request;
      };
      const waiting = send(CLAIM, claim(way));
      await handlers(1);
      const answer = await new Promise<http.IncomingMessage>((resolve) =>
        send(APPEND, append(way, 100_000)).once('response', resolve),
      );
      await buffer(answer);
      expect(answer.statusCode).toBe(200);
      expect(await endOf(trajectoryId)).toBe(1n);
      expect(server.counts().handlers).toBe(1);
      waiting.destroy();
      await handlers(0);
    },
  );

  it.each([CONNECT, GRPC, GRPC_WEB])(
    '$name: a caller that does not read its answer delays no large message',
    async (way) => {
      const deaf = await http2Session(server.url, { settings: { initialWindowSize: 0 } });
      call(APPEND, append(way, 100_000), deaf);
      await until(() => server.counts().requests > 0, 'the call has arrived');
      for (let end = 0n; end === 0n; end = await endOf(trajectoryId));
      const outcome = await call(APPEND, append(way, 700_000, true, 1n)).outcome;
      expect(outcome.http).toBe(200);
      expect(await endOf(trajectoryId)).toBe(2n);
      expect(server.counts().requests, 'the answer is not read yet').toBeGreaterThan(0);
      deaf.destroy();
    },
  );

  it.each([CONNECT, GRPC, GRPC_WEB])(
    '$name: a caller whose message cannot be decoded delays no large message',
    async (way) => {
      const deaf = await http2Session(server.url, { settings: { initialWindowSize: 0 } });
      const broken = Buffer.alloc(100_000, 0xff);
      const body = way.enveloped ? inEnvelope(broken) : broken;
      const plain = call(APPEND, { headers: { 'content-type': way.contentType }, body }, deaf);
      const squeezed = { 'content-type': way.contentType, [way.encodingHeader]: 'gzip' };
      const compressed = call(
        APPEND,
        { headers: squeezed, body: way.enveloped ? inEnvelope(broken, 1) : broken },
        deaf,
      );
      await Promise.all([plain, compressed].map(({ stream }) => once(stream, 'response')));
      await call(APPEND, append(way, 700_000)).outcome;
      expect(await endOf(trajectoryId)).toBe(1n);
      deaf.destroy();
    },
  );
});

describe('MS1: a message of thousands of steps is large in memory', () => {
  const steps = Array.from({ length: 6_000 }, (_, i) => ({ stepNumber: BigInt(i), reward: 0.5, terminated: true }));

  it.runIf(ON_POSTGRES).each([GRPC, GRPC_WEB])(
    '$name: on a stream on Postgres it keeps its slot until its steps are stored',
    async (way) => {
      await using postgres = await startTestServer({ engine: 'postgres' });
      const writer = connectClient({ address: postgres.url });
      const { trajectory } = await writer.trajectories.createTrajectory({});
      const wire = await http2Session(postgres.url);
      const appending = new RawCall(wire, APPEND_STEPS, { 'content-type': way.contentType });
      const open = { trajectoryId: trajectory!.id, writerId: 'w' };
      appending.stream.write(envelope(AppendStepsRequestSchema, { open }));
      await appending.messages(1);
      const holder = new pg.Client(postgres.database.url);
      await holder.connect();
      await using _ = { [Symbol.asyncDispose]: () => holder.end() };
      await holder.query('begin');
      await holder.query('select 1 from anabranch.trajectories where id = $1 for update', [trajectory!.id]);
      appending.stream.end(envelope(AppendStepsRequestSchema, { steps }));
      for (let waiting = 0; waiting === 0; ) {
        await holder.query('select pg_stat_clear_snapshot()');
        const found = await holder.query(
          `select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
        );
        waiting = found.rows.length;
      }
      expect(postgres.counts().slots).toBe(1);
      await holder.query('commit');
      expect((await appending.outcome).http).toBe(200);
      const { trajectory: stored } = await writer.trajectories.getTrajectory({ trajectoryId: trajectory!.id });
      expect(stored!.nextStepNumber).toBe(6_000n);
      expect(postgres.counts().slots).toBe(0);
      wire.destroy();
      writer.close();
    },
  );

  it.each([CONNECT, GRPC, GRPC_WEB])(
    '$name: a caller that does not read its answer delays no large message',
    async (way) => {
      const deaf = await http2Session(server.url, { settings: { initialWindowSize: 0 } });
      const entries = [{ trajectoryId, writerId: 'w', steps }];
      call(APPEND_BATCH, written(way, AppendBatchRequestSchema, { entries }, false), deaf);
      await until(() => server.counts().requests > 0, 'the call has arrived');
      for (let end = 0n; end === 0n; end = await endOf(trajectoryId));
      trajectoryId = (await client.trajectories.createTrajectory({})).trajectory!.id;
      const outcome = await call(APPEND, append(way, 700_000, true)).outcome;
      expect(outcome.http).toBe(200);
      expect(await endOf(trajectoryId)).toBe(1n);
      expect(server.counts().requests, 'the answer is not read yet').toBeGreaterThan(0);
      deaf.destroy();
    },
  );
});

describe('MS1: requests that are reset', () => {
  it.each([CONNECT, GRPC, GRPC_WEB])(
    '$name: two small requests that are reset block no large messages',
    async (way) => {
      const [first, second] = [call(CLAIM, claim(way)), call(CLAIM, claim(way))];
      await until(() => server.counts().requests >= 2, 'both have arrived');
      second.stream.close(8);
      await second.outcome;
      first.stream.close(8);
      await handlers(0);
      await call(APPEND, append(way, 700_000)).outcome;
      await call(APPEND, append(way, 100, true, 1n)).outcome;
      expect(await endOf(trajectoryId)).toBe(2n);
      expect(server.counts().slots).toBe(0);
    },
  );

  it('sixty clients with steps of 700 KB whose deadlines pass block no large messages', async () => {
    const waiting = call(CLAIM, claim(CONNECT));
    await handlers(1);
    const sessions = await Promise.all(Array.from({ length: 60 }, () => http2Session(server.url)));
    const ways = [CONNECT, GRPC, GRPC_WEB];
    const calls = sessions.map((each, i) => call(APPEND, append(ways[i % 3]!, 700_000, i % 2 === 0), each));
    let answered = 0;
    for (const { outcome } of calls) void outcome.then(() => (answered += 1));
    await until(() => server.counts().requests + answered >= 61, 'all have arrived');
    for (const { stream } of calls) stream.close(8);
    await Promise.all(calls.map(({ outcome }) => outcome));
    for (const each of sessions) each.destroy();
    waiting.stream.close(8);
    await handlers(0);
    const { id } = (await client.trajectories.createTrajectory({ trajectoryId: randomUUID() })).trajectory!;
    trajectoryId = id;
    await call(APPEND, append(CONNECT, 700_000)).outcome;
    await call(APPEND, append(CONNECT, 100, true, 1n)).outcome;
    expect(await endOf(id)).toBe(2n);
    expect(server.counts()).toMatchObject({ slots: 0, unfinishedBytes: 0 });
  });
});
