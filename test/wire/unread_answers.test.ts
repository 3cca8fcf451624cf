import { type ClientHttp2Session, type ClientHttp2Stream, constants } from 'node:http2';
import { buffer } from 'node:stream/consumers';
import { create, toBinary } from '@bufbuild/protobuf';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import {
  GetStepRequestSchema,
  GetTrajectoryRequestSchema,
  ReadStepsRequestSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import { dose } from '../support/dose.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { http2Session, inEnvelope, until } from './raw.ts';

const SERVICE = '/anabranch.v1.TrajectoryService';
/** All answers are read, encoded and sent, on any machine. */
const PATIENCE_MS = 120_000;
/** More than Node lets a connection hold by default: 10 MB in all answers together. */
const TEXT = 'x'.repeat(dose(250_000, 1_000_000));

/** An encoding of a call with one request. */
interface Way {
  readonly name: string;
  readonly contentType: string;
  readonly enveloped: boolean;
  readonly rpc: 'GetStep' | 'ReadSteps';
}

const WAYS: readonly Way[] = [
  { name: 'gRPC', contentType: 'application/grpc', enveloped: true, rpc: 'GetStep' },
  { name: 'a stream of gRPC', contentType: 'application/grpc', enveloped: true, rpc: 'ReadSteps' },
  { name: 'gRPC-Web', contentType: 'application/grpc-web+proto', enveloped: true, rpc: 'GetStep' },
  { name: 'Connect', contentType: 'application/proto', enveloped: false, rpc: 'GetStep' },
  { name: 'a stream of Connect', contentType: 'application/connect+proto', enveloped: true, rpc: 'ReadSteps' },
];

let server: TestServer;
let client: AnabranchClient;
let trajectoryId: string;
let session: ClientHttp2Session;

beforeAll(async () => {
  server = await startTestServer();
  client = connectClient({ address: server.url });
  const { trajectory } = await client.trajectories.createTrajectory({
    root: { observations: [{ content: { text: TEXT } }] },
  });
  trajectoryId = trajectory!.id;
});
afterAll(async () => {
  client.close();
  await server.stop();
});
beforeEach(async () => {
  session = await http2Session(server.url);
});
afterEach(() => session.destroy());

function call(path: string, contentType: string, body: Uint8Array): ClientHttp2Stream {
  const stream = session.request({ ':method': 'POST', ':path': path, 'content-type': contentType });
  stream.on('error', () => undefined); // the reset code reports it
  stream.end(body);
  return stream;
}

/** Requests the large step, and does not read the answer. */
function ask({ contentType, enveloped, rpc }: Way): ClientHttp2Stream {
  const message =
    rpc === 'GetStep'
      ? toBinary(GetStepRequestSchema, create(GetStepRequestSchema, { trajectoryId, stepNumber: 0n }))
      : toBinary(ReadStepsRequestSchema, create(ReadStepsRequestSchema, { trajectoryId }));
  return call(`${SERVICE}/${rpc}`, contentType, enveloped ? inEnvelope(message) : message);
}

/** Reads the answer and returns its size; its stream must not have been reset. */
async function readWhole(stream: ClientHttp2Stream): Promise<number> {
  const { length } = await buffer(stream);
  expect(stream.rstCode).toBe(constants.NGHTTP2_NO_ERROR);
  return length;
}

/** Calls of either kind, by either protocol. The large dose has the other ways. */
const USUAL = ['gRPC', 'a stream of Connect'];
const CHOSEN = WAYS.filter(({ name }) => USUAL.includes(name) === dose(true, false));

describe.each(CHOSEN)(`A8: 99 unread answers of ${TEXT.length / 1000} kB by $name`, (way) => {
  it(
    'do not end the connection: small calls are answered meanwhile, and once read, all answers are complete',
    async () => {
      const large = Array.from({ length: 80 }, () => ask(way));
      // Answers of unary calls are complete once their handlers have ended; those of streams are written one after the
      // other by their handlers.
      await until(
        () => server.counts().handlers === (way.rpc === 'GetStep' ? 0 : 80),
        'handlers of 80 calls',
        PATIENCE_MS,
      );
      for (let i = 0; i < 10; i += 1) {
        const small = call(
          `${SERVICE}/GetTrajectory`,
          'application/proto',
          toBinary(GetTrajectoryRequestSchema, create(GetTrajectoryRequestSchema, { trajectoryId })),
        );
        expect(await readWhole(small)).toBeGreaterThan(0);
      }
      while (large.length < 99) large.push(ask(way));
      const sizes = await Promise.all(large.map(readWhole));
      expect(Math.min(...sizes)).toBeGreaterThan(TEXT.length);
      expect(Math.max(...sizes)).toBe(Math.min(...sizes));
      expect(session.destroyed).toBe(false);
    },
    PATIENCE_MS,
  );
});
