import { randomUUID } from 'node:crypto';
import type { ClientHttp2Session } from 'node:http2';
import { gzipSync } from 'node:zlib';
import { create, type DescMethod, fromBinary, toBinary } from '@bufbuild/protobuf';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { AdminService } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { ServerService } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import {
  AppendStepRequestSchema,
  CreateTrajectoryRequestSchema,
  GetTrajectoryRequestSchema,
  GetTrajectoryResponseSchema,
  ReadStepsRequestSchema,
  ReadStepsResponseSchema,
  TrajectoryService,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { envelope, http2Session, inEnvelope, type Outcome, openEnvelopes, RawCall, rawCall, until } from './raw.ts';

/**
 * Plain gRPC takes the short path to its handler, everything else the path of Connect. A client that accepts
 * compression takes the path of Connect.
 */
const BY_CONNECT = { 'grpc-encoding': 'gzip' };
const SERVICE = '/anabranch.v1.TrajectoryService';
const METHODS: readonly DescMethod[] = [
  TrajectoryService,
  StateService,
  RunService,
  RolloutService,
  AdminService,
  ServerService,
].flatMap((service): readonly DescMethod[] => service.methods);
/** One method of each kind. */
const OF_EACH_KIND = [...Map.groupBy(METHODS, ({ methodKind }) => methodKind).values()].map(([first]) => first!.name);
const EMPTY = inEnvelope(new Uint8Array());
const BODIES: readonly (readonly [string, Buffer])[] = [
  ['an empty message', EMPTY],
  ['nothing', Buffer.alloc(0)],
  ['half an envelope', Buffer.from([0, 0, 0])],
  ['a truncated message', Buffer.from([0, 0, 0, 0, 9, 10])],
  ['two messages', Buffer.concat([EMPTY, EMPTY])],
  ['a message and half of another', Buffer.concat([EMPTY, EMPTY.subarray(0, 4)])],
  ['bytes that are not a message', inEnvelope(Buffer.from([255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255]))],
  ['a message with an unknown flag', inEnvelope(new Uint8Array(), 2)],
  ['a message with invalid compression', inEnvelope(Buffer.from('no gzip'), 1)],
  ['a message of 4 GiB', Buffer.from([0, 255, 255, 255, 255])],
];

let server: TestServer;
let session: ClientHttp2Session;
let trajectoryId: string;
beforeAll(async () => {
  server = await startTestServer();
  session = await http2Session(server.url);
  trajectoryId = randomUUID();
  const made = await rawCall(
    session,
    `${SERVICE}/CreateTrajectory`,
    envelope(CreateTrajectoryRequestSchema, { trajectoryId }),
  );
  expect(made.status).toBe(0);
});
afterAll(async () => {
  session.destroy();
  await until(
    () => Object.values(server.counts()).every((count) => count === 0),
    `nothing is open: ${JSON.stringify(server.counts())}`,
  );
  await server.stop();
});

/** The answer without values that differ in every call. */
function told({ status, message, reason }: Outcome) {
  return { status, message: message.replaceAll(/[0-9a-f]{8}-[0-9a-f-]{27}/g, 'ID'), reason };
}

/** If a request is invalid in two ways, each path may report the other one. */
const kindOf = ({ status, reason }: Outcome) => ({ status, reason });

describe('plain gRPC', () => {
  const get = () => envelope(GetTrajectoryRequestSchema, { trajectoryId });
  const GET = `${SERVICE}/GetTrajectory`;

  it.each(METHODS.map((method) => [method.name, method] as const))(
    '%s answers malformed requests as it does by Connect',
    async (_name, { parent, name }) => {
      const path = `/${parent.typeName}/${name}`;
      for (const [what, body] of OF_EACH_KIND.includes(name) ? BODIES : BODIES.slice(0, 1)) {
        const [short, connect] = [await rawCall(session, path, body), await rawCall(session, path, body, BY_CONNECT)];
        const tell = what === 'an empty message' ? told : kindOf;
        expect(tell(short), what).toEqual(tell(connect));
      }
    },
  );

  it('a request is the same whatever its frames and chunks', async () => {
    const whole = await rawCall(session, GET, get());
    await fc.assert(
      fc.asyncProperty(fc.array(fc.integer({ min: 0, max: get().length }), { maxLength: 20 }), async (cuts) => {
        const call = new RawCall(session, GET);
        let at = 0;
        for (const cut of [...cuts].sort((a, b) => a - b)) {
          await new Promise<void>((resolve) => call.stream.write(get().subarray(at, cut), () => resolve()));
          at = cut;
        }
        call.stream.end(get().subarray(at));
        expect(await call.outcome).toEqual(whole);
      }),
      { numRuns: 60 },
    );
    expect(fromBinary(GetTrajectoryResponseSchema, openEnvelopes(whole.body)[0]!).trajectory?.id).toBe(trajectoryId);
  });

  it('a request that is compressed, larger than 64 KiB, or accepts compression gets the same answer', async () => {
    const plain = await rawCall(session, GET, get());
    const message = toBinary(GetTrajectoryRequestSchema, create(GetTrajectoryRequestSchema, { trajectoryId }));
    expect(await rawCall(session, GET, inEnvelope(gzipSync(message), 1), BY_CONNECT)).toEqual(plain);
    expect(await rawCall(session, GET, get(), { 'grpc-encoding': 'identity' })).toEqual(plain);
    const append = (stepNumber: bigint, text: string) =>
      rawCall(
        session,
        `${SERVICE}/AppendStep`,
        envelope(AppendStepRequestSchema, {
          trajectoryId,
          step: { stepNumber, observations: [{ type: 'text', content: { text } }] },
        }),
      );
    expect(await append(0n, 'x'.repeat(200_000))).toMatchObject({ status: 0 });
    expect(await append(1n, 'y')).toMatchObject({ status: 0 });
    const read = await rawCall(session, `${SERVICE}/ReadSteps`, envelope(ReadStepsRequestSchema, { trajectoryId }));
    const steps = openEnvelopes(read.body).flatMap((bytes) => fromBinary(ReadStepsResponseSchema, bytes).steps);
    const texts = steps.map((step) => step.observations[0]?.content?.text);
    expect(texts.map((text) => text?.length)).toEqual([200_000, 1]);
  });

  it('an error that quotes part of an invalid text is returned all the same', async () => {
    for (const infoJson of ['🌊'.repeat(100), `{"a":${'🌊'.repeat(100)}`, `x${'🌊'.repeat(100)}`]) {
      const body = envelope(AppendStepRequestSchema, { trajectoryId, step: { stepNumber: 9n, infoJson } });
      for (const headers of [{}, BY_CONNECT]) {
        const outcome = await rawCall(session, `${SERVICE}/AppendStep`, body, headers);
        expect(outcome).toMatchObject({ reason: 'INVALID_REQUEST', message: expect.stringContaining('info_json') });
      }
    }
  });

  it('deadlines are respected in every notation', async () => {
    for (const deadline of ['1000m', '10S', '5M', '99999999H', '1000000u', '2H'])
      expect(await rawCall(session, GET, get(), { 'grpc-timeout': deadline }), deadline).toMatchObject({ status: 0 });
    expect(await rawCall(session, GET, get(), { 'grpc-timeout': '0m' })).toMatchObject({ reason: 'DEADLINE_EXCEEDED' });
    for (const none of ['x', '', '-1S', '123456789S'])
      expect(kindOf(await rawCall(session, GET, get(), { 'grpc-timeout': none })), none).toEqual(
        kindOf(await rawCall(session, GET, get(), { 'grpc-timeout': none, ...BY_CONNECT })),
      );
    const follow = envelope(ReadStepsRequestSchema, { trajectoryId, follow: true });
    const cut = await rawCall(session, `${SERVICE}/ReadSteps`, follow, { 'grpc-timeout': '150m' });
    expect(cut).toMatchObject({ http: 200, reason: 'DEADLINE_EXCEEDED' });
  });
});
