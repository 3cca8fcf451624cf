/** What a neighbour on the same server does, good or bad, until its connection ends. Each value is one thing done. */
import { randomBytes, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import http2, {
  type ClientHttp2Session,
  type ClientHttp2Stream,
  type OutgoingHttpHeaders,
  type SecureClientSessionOptions,
} from 'node:http2';
import net from 'node:net';
import { setTimeout as wait } from 'node:timers/promises';
import { gzipSync } from 'node:zlib';
import { create, toBinary } from '@bufbuild/protobuf';
import { GetServerInfoRequestSchema, ServerService } from '../../../gen/es/anabranch/v1/server_service_pb.js';
import {
  AppendStepRequestSchema,
  AppendStepsRequestSchema,
  CreateTrajectoryRequestSchema,
  ReadStepsRequestSchema,
  TrajectoryService,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { newSecret } from '../../../src/domain/access.ts';
import { LIMITS } from '../../../src/domain/limits.ts';
import { envelope, inEnvelope, RawCall, rawCall } from '../../wire/raw.ts';

/** The server, and the key of the neighbour. */
export interface Target {
  readonly url: string;
  readonly port: number;
  /** The certificate that clients trust. */
  readonly ca: string;
  readonly token: string;
}

type Act = (target: Target) => AsyncGenerator<void>;

const TRAJECTORIES = `/${TrajectoryService.typeName}`;
const CREATE = `${TRAJECTORIES}/CreateTrajectory`;
const APPEND_STEP = `${TRAJECTORIES}/AppendStep`;
const APPEND_STEPS = `${TRAJECTORIES}/AppendSteps`;
const READ_STEPS = `${TRAJECTORIES}/ReadSteps`;
const SERVER_INFO = `/${ServerService.typeName}/GetServerInfo`;
const CANCEL = 8;
/** The neighbour has an address of its own, as in a cluster. */
const FROM = { localAddress: '127.0.0.2' };

/** Fewer than the server allows on one connection. */
const STREAMS = 90;
const STEPS_PER_MESSAGE = 100;
const STEP_TEXT = 'x'.repeat(1000);
const LARGE_TEXT = 'x'.repeat(900_000);
const CONNECTIONS = 5000;
const HALF = inEnvelope(Buffer.alloc(LIMITS.messageBytes)).subarray(0, 200_000);

/** As busy as a service of many agents: streams that never wait for an ack, and reads. Reads all answers. */
export const HARMLESS: Readonly<Record<string, Act>> = { batches, reads };

/** All of it, and what no service does. */
export const HOSTILE: Readonly<Record<string, Act>> = {
  ...HARMLESS,
  'large messages': largeMessages,
  'unread answers': unread,
  'windows of 0': closedWindows,
  'half-sent messages': halfSent,
  resets,
  connections,
  'failed handshakes': failedHandshakes,
  'unknown keys': unknownKeys,
};

async function* batches(target: Target): AsyncGenerator<void> {
  const { session, headers, trajectoryId } = await withTrajectory(target);
  try {
    const { stream } = new RawCall(session, APPEND_STEPS, headers);
    stream.write(envelope(AppendStepsRequestSchema, { open: { trajectoryId, writerId: 'neighbour' } }));
    for (let first = 0; !stream.destroyed; first += STEPS_PER_MESSAGE) {
      const steps = Array.from({ length: STEPS_PER_MESSAGE }, (_, i) => ({
        stepNumber: BigInt(first + i),
        observations: [{ content: { text: STEP_TEXT } }],
      }));
      if (!stream.write(envelope(AppendStepsRequestSchema, { steps }))) await either(stream, 'drain');
      yield;
    }
  } finally {
    session.destroy();
  }
}

async function* reads(target: Target): AsyncGenerator<void> {
  const { session, headers, trajectoryId } = await withTrajectory(target, 50);
  try {
    while (!session.destroyed) {
      await rawCall(session, READ_STEPS, envelope(ReadStepsRequestSchema, { trajectoryId }), headers);
      yield;
    }
  } finally {
    session.destroy();
  }
}

/** As large as a message may be. Every second one is compressed, and takes all of the decode queue. */
async function* largeMessages(target: Target): AsyncGenerator<void> {
  const { session, headers, trajectoryId } = await withTrajectory(target);
  const step = { stepNumber: 0n, observations: [{ content: { text: LARGE_TEXT } }] };
  const bytes = toBinary(AppendStepRequestSchema, create(AppendStepRequestSchema, { trajectoryId, step }));
  const zipped = inEnvelope(gzipSync(bytes), 1);
  try {
    while (!session.destroyed) {
      await Promise.all([
        rawCall(session, APPEND_STEP, inEnvelope(bytes), headers),
        rawCall(session, APPEND_STEP, zipped, { ...headers, 'grpc-encoding': 'gzip' }),
      ]);
      yield;
    }
  } finally {
    session.destroy();
  }
}

/** Requests steps and follows, and reads none of them. */
async function* unread(target: Target): AsyncGenerator<void> {
  const { session, headers, trajectoryId } = await withTrajectory(target, 500);
  const bodies = [false, true].map((follow) => envelope(ReadStepsRequestSchema, { trajectoryId, follow }));
  yield* onStreams(session, (i) => send(session, READ_STEPS, headers, bodies[i % 2]!).end());
}

async function* closedWindows(target: Target): AsyncGenerator<void> {
  const { session, headers } = await connected(target, { settings: { initialWindowSize: 0 } });
  const body = envelope(GetServerInfoRequestSchema, {});
  yield* onStreams(session, () => send(session, SERVER_INFO, headers, body).end());
}

async function* halfSent(target: Target): AsyncGenerator<void> {
  const { session, headers } = await connected(target);
  yield* onStreams(session, () => send(session, APPEND_STEPS, headers, HALF));
}

async function* resets(target: Target): AsyncGenerator<void> {
  const { session, headers } = await connected(target);
  try {
    while (!session.destroyed && !session.closed) {
      send(session, APPEND_STEPS, headers, new Uint8Array()).close(CANCEL);
      yield;
    }
  } finally {
    session.destroy();
  }
}

/** Connections that send nothing. Those that the server closes are opened again. */
async function* connections({ port }: Target): AsyncGenerator<void> {
  const open = new Set<net.Socket>();
  try {
    for (;;) {
      if (open.size >= CONNECTIONS) {
        await wait(10);
        continue;
      }
      const socket = net.connect({ host: '127.0.0.1', port, ...FROM });
      open.add(socket);
      socket.on('error', () => undefined);
      socket.once('close', () => open.delete(socket));
      await either(socket, 'connect');
      yield;
    }
  } finally {
    for (const socket of open) socket.resetAndDestroy();
  }
}

async function* failedHandshakes({ port }: Target): AsyncGenerator<void> {
  for (;;) {
    const socket = net.connect({ host: '127.0.0.1', port, ...FROM });
    socket.on('error', () => undefined);
    socket.on('data', () => undefined);
    // The header of a TLS record, and nothing that could follow it.
    socket.end(Buffer.concat([Buffer.from([22, 3, 1, 1, 0]), randomBytes(256)]));
    if (!socket.closed) await once(socket, 'close');
    yield;
  }
}

/** Keys of the right form that nobody has: each is looked up. */
async function* unknownKeys(target: Target): AsyncGenerator<void> {
  const { session } = await connected(target);
  const body = envelope(GetServerInfoRequestSchema, {});
  try {
    while (!session.destroyed) {
      await rawCall(session, SERVER_INFO, body, { authorization: `Bearer ${newSecret()}` });
      yield;
    }
  } finally {
    session.destroy();
  }
}

interface Connected {
  readonly session: ClientHttp2Session;
  readonly headers: OutgoingHttpHeaders;
}

async function connected({ url, ca, token }: Target, options: SecureClientSessionOptions = {}): Promise<Connected> {
  const session = http2.connect(url, { ...options, ca, ...FROM });
  session.on('error', () => undefined);
  await either(session, 'connect');
  return { session, headers: { authorization: `Bearer ${token}` } };
}

/** A connection, and a new trajectory with some steps of a kibibyte. */
async function withTrajectory(target: Target, steps = 0): Promise<Connected & { readonly trajectoryId: string }> {
  const { session, headers } = await connected(target);
  const trajectoryId = randomUUID();
  await rawCall(session, CREATE, envelope(CreateTrajectoryRequestSchema, { trajectoryId }), headers);
  if (steps > 0) {
    const open = envelope(AppendStepsRequestSchema, { open: { trajectoryId, writerId: 'neighbour' } });
    const all = Array.from({ length: steps }, (_, i) => ({
      stepNumber: BigInt(i),
      observations: [{ content: { text: STEP_TEXT } }],
    }));
    const body = Buffer.concat([open, envelope(AppendStepsRequestSchema, { steps: all })]);
    await rawCall(session, APPEND_STEPS, body, headers);
  }
  return { session, headers, trajectoryId };
}

/** Begins a call whose answer is not read. */
function send(session: ClientHttp2Session, path: string, headers: OutgoingHttpHeaders, body: Uint8Array) {
  const stream = session.request({
    ':method': 'POST',
    ':path': path,
    'content-type': 'application/grpc+proto',
    te: 'trailers',
    ...headers,
  });
  stream.on('error', () => undefined);
  stream.write(body);
  return stream;
}

/** Begins as many calls as a connection may have, waits until the server ends some or for seconds, and disconnects. */
async function* onStreams(session: ClientHttp2Session, begin: (i: number) => unknown): AsyncGenerator<void> {
  try {
    for (let i = 0; i < STREAMS && !session.destroyed; i += 1) {
      begin(i);
      yield;
    }
    const over = new AbortController();
    await Promise.race([wait(3000, undefined, over), either(session, 'goaway')]).catch(() => undefined);
    over.abort();
  } finally {
    session.destroy();
  }
}

/** Resolves at an event, or when nothing more can happen. */
async function either(emitter: net.Socket | ClientHttp2Stream | ClientHttp2Session, event: string): Promise<void> {
  if (emitter.destroyed) return;
  const over = new AbortController();
  const events = [event, 'close'].map((name) => once(emitter, name, over).catch(() => undefined));
  await Promise.race(events);
  over.abort();
}
