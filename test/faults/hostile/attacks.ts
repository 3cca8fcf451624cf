/**
 * Clients that send harmful bytes. Each returns how many inputs it sent before the server closed the connection, or
 * all.
 */
import { randomUUID } from 'node:crypto';
import type { ClientHttp2Session } from 'node:http2';
import { gzipSync } from 'node:zlib';
import {
  AppendStepsRequestSchema,
  CreateTrajectoryRequestSchema,
  TrajectoryService,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { LIMITS } from '../../../src/domain/limits.ts';
import { envelope, http2Session, inEnvelope, type Outcome, rawCall } from '../../wire/raw.ts';
import type { Random } from '../random.ts';
import { FLAG, FRAME, frame, grpcHeaders, RawConnection, uint32 } from './frames.ts';

export interface Target {
  readonly port: number;
  /** A trajectory for use by attacks. */
  readonly trajectoryId: string;
  /** Whether callers need a credential, which no attack has. */
  readonly guarded: boolean;
  readonly random: Random;
}

export interface Attack {
  readonly name: string;
  /** MiB by which the memory of the process may grow. Includes uncollected garbage. */
  readonly mayCost: number;
  /** How long other clients may wait for an answer meanwhile. Default: 3 s. */
  readonly mayHoldUpMs?: number;
  readonly run: (target: Target) => Promise<number>;
}

const SERVICE = `/${TrajectoryService.typeName}`;
const CREATE = `${SERVICE}/CreateTrajectory`;
const APPEND = `${SERVICE}/AppendSteps`;
const ENHANCE_YOUR_CALM = 11;
const CANCEL = 8;
/** Codes of gRPC. */
const INVALID_ARGUMENT = 3;
const RESOURCE_EXHAUSTED = 8;
const UNAUTHENTICATED = 16;

/** Throws unless a call got one of these codes; of a server that wants credentials, UNAUTHENTICATED. */
function requireStatus({ guarded }: Target, { status, message }: Outcome, ...expected: readonly number[]): void {
  const allowed = guarded ? [UNAUTHENTICATED] : expected;
  if (!allowed.includes(status ?? -1))
    throw new Error(`the status is ${status}, not ${allowed.join(' or ')}: ${message}`);
}

const openFrame = ({ trajectoryId }: Target) =>
  envelope(AppendStepsRequestSchema, { open: { trajectoryId, writerId: 'hostile' } });

/** Sends the same bytes repeatedly on one connection, in chunks, until all are sent or the server has closed it. */
async function flood(connection: RawConnection, bytes: (i: number) => Uint8Array, count: number): Promise<number> {
  const chunk = 200;
  let sent = 0;
  while (sent < count && !connection.closed) {
    const now = Math.min(chunk, count - sent);
    await connection.send(Buffer.concat(Array.from({ length: now }, (_, i) => bytes(sent + i))));
    sent += now;
    // Lets the client read the answers of the server, and its GOAWAY, between two chunks.
    await new Promise((resolve) => setImmediate(resolve));
  }
  return sent;
}

/** Opens a new connection whenever the server closes one. */
async function floodAgain(
  target: Target,
  count: number,
  bytes: (connection: RawConnection, i: number) => Uint8Array,
): Promise<number> {
  let sent = 0;
  while (sent < count) {
    const connection = await RawConnection.open(target.port);
    sent += await flood(connection, (i) => bytes(connection, i), count - sent);
    connection.reset();
  }
  return sent;
}

/** Control frames that need an answer, or none, on one connection with an open append stream. */
function controlFlood(name: string, count: number, bytes: (stream: number) => Uint8Array): Attack {
  return {
    name,
    mayCost: 64,
    run: async (target) => {
      const connection = await RawConnection.open(target.port);
      const stream = connection.nextStream();
      await connection.send(frame(FRAME.headers, FLAG.endHeaders, stream, grpcHeaders(APPEND)));
      await connection.send(frame(FRAME.data, 0, stream, openFrame(target)));
      const sent = await flood(connection, () => bytes(stream), count);
      connection.reset();
      return sent;
    },
  };
}

/** The same request on many streams, 100 on each connection. */
async function onManyStreams(target: Target, count: number, path: string, body: Uint8Array): Promise<number> {
  for (let sent = 0; sent < count; sent += 100) {
    const connection = await RawConnection.open(target.port);
    for (let i = 0; i < Math.min(100, count - sent); i += 1) {
      const stream = connection.nextStream();
      await connection.send(frame(FRAME.headers, FLAG.endHeaders, stream, grpcHeaders(path)));
      for (let at = 0; at < body.length; at += 16_384) {
        const last = at + 16_384 >= body.length;
        const piece = body.subarray(at, at + 16_384);
        await connection.send(frame(FRAME.data, last ? FLAG.endStream : 0, stream, piece));
      }
    }
    await answered(connection);
    connection.reset();
  }
  return count;
}

/** Returns what comes of requests on a connection, which is closed whatever happens. */
async function onSession<T>({ port }: Target, run: (session: ClientHttp2Session) => Promise<T>): Promise<T> {
  const session = await http2Session(`http://127.0.0.1:${port}`);
  return run(session).finally(() => session.destroy());
}

/** One append stream to a trajectory of its own, with these frames after the open. Returns its outcome. */
function ownTrajectory(target: Target, path: string, frames: Uint8Array): Promise<Outcome> {
  return onSession(target, async (session) => {
    const trajectoryId = randomUUID();
    await rawCall(session, CREATE, envelope(CreateTrajectoryRequestSchema, { trajectoryId }));
    const open = envelope(AppendStepsRequestSchema, { open: { trajectoryId, writerId: 'hostile' } });
    return rawCall(session, path, Buffer.concat([open, frames]));
  });
}

/**
 * Waits until a PING is answered: the server has then read everything sent before. The wait is bounded, since a frame
 * with a wrong length swallows the PING.
 */
async function answered(connection: RawConnection, patienceMs = 10_000): Promise<void> {
  if (connection.closed) return;
  const ended = new Promise<void>((resolve) => {
    const look = (piece: Buffer) => {
      if (!piece.includes('answered')) return;
      connection.socket.off('data', look);
      resolve();
    };
    connection.socket.on('data', look);
    connection.socket.once('close', () => resolve());
    setTimeout(resolve, patienceMs).unref();
  });
  await connection.send(frame(FRAME.ping, 0, 0, Buffer.from('answered')));
  await ended;
}

/** Valid requests with some of their bytes changed, removed, duplicated or added. */
function mutate(bytes: Buffer, random: Random): Buffer {
  const copy = Buffer.from(bytes);
  for (let changes = random.between(1, 6); changes > 0; changes -= 1) {
    const at = random.between(0, copy.length - 1);
    copy[at] = random.pick([0, 1, 0x7f, 0x80, 0xff, random.between(0, 255)]);
  }
  const end = random.next() < 0.3 ? random.between(0, copy.length) : copy.length;
  const tail = random.next() < 0.2 ? Buffer.from([random.between(0, 255), random.between(0, 255)]) : Buffer.alloc(0);
  return Buffer.concat([copy.subarray(0, end), tail]);
}

/** What is mutated: the message of a request, its envelope, its header block or whole frames. */
function mutatedRequest(connection: RawConnection, target: Target): Buffer {
  const { random } = target;
  const stream = connection.nextStream();
  const path = random.pick(Object.values(TrajectoryService.method)).name;
  const message = random.pick([
    openFrame(target),
    envelope(CreateTrajectoryRequestSchema, { name: 'n', labels: { a: 'b' }, metadataJson: '{}' }),
    envelope(AppendStepsRequestSchema, {
      steps: [
        { stepNumber: 0n, infoJson: '{"a":1}', metrics: { a: 1 }, states: [{ name: 'env', data: new Uint8Array(9) }] },
      ],
    }),
  ]);
  const headers = frame(FRAME.headers, FLAG.endHeaders, stream, grpcHeaders(`${SERVICE}/${path}`));
  const data = (body: Uint8Array) => frame(FRAME.data, FLAG.endStream, stream, body);
  const kind = random.next();
  if (kind < 0.6) {
    return Buffer.concat([headers, data(inEnvelope(mutate(message.subarray(5), random)))]);
  }
  if (kind < 0.85) return Buffer.concat([headers, data(mutate(message, random))]);
  const block = mutate(grpcHeaders(`${SERVICE}/${path}`), random);
  if (kind < 0.95) return Buffer.concat([frame(FRAME.headers, FLAG.endHeaders, stream, block), data(message)]);
  return mutate(Buffer.concat([headers, data(message)]), random);
}

const MIB = 1024 * 1024;
/** The field `steps` of a frame, with length 0. */
const EMPTY_STEP = Buffer.from([0x12, 0x00]);

/** T11 to T15 with these numbers of inputs. */
export function attacks(dose: {
  readonly mutated: number;
  readonly broken: number;
  readonly floods: number;
  /** Of each kind, at once. */
  readonly bombs: number;
  /** Streams of many empty steps. */
  readonly streams: number;
}): readonly Attack[] {
  return [
    {
      name: 'mutated requests',
      mayCost: 200,
      run: async (target) => {
        let sent = 0;
        while (sent < dose.mutated) {
          const connection = await RawConnection.open(target.port);
          const until = Math.min(dose.mutated, sent + 80);
          for (; sent < until && !connection.closed; sent += 1)
            await connection.send(mutatedRequest(connection, target));
          await answered(connection, 250);
          connection.reset();
        }
        return sent;
      },
    },
    {
      name: 'envelopes that claim 4 GiB',
      mayCost: 64,
      run: (target) => onManyStreams(target, 1000, APPEND, Buffer.from([0, 0xff, 0xff, 0xff, 0xff, 1, 2, 3])),
    },
    {
      name: 'gzip bombs of 1, 10 and 100 times the limit, and one in another',
      mayCost: 200,
      run: async (target) => {
        const bombs = [1, 10, 100].map((times) => gzipSync(Buffer.alloc(times * LIMITS.messageBytes)));
        bombs.push(gzipSync(bombs[2]!));
        await onSession(target, async (session) => {
          for (const bomb of bombs) {
            const throwOne = () => rawCall(session, CREATE, inEnvelope(bomb, 1), { 'grpc-encoding': 'gzip' });
            for (const outcome of await Promise.all(Array.from({ length: dose.bombs }, throwOne)))
              requireStatus(target, outcome, INVALID_ARGUMENT, RESOURCE_EXHAUSTED);
          }
        });
        return dose.bombs * bombs.length;
      },
    },
    {
      name: 'DATA frames of one byte',
      mayCost: 64,
      run: async (target) => {
        const connection = await RawConnection.open(target.port);
        const stream = connection.nextStream();
        await connection.send(frame(FRAME.headers, FLAG.endHeaders, stream, grpcHeaders(APPEND)));
        await connection.send(frame(FRAME.data, 0, stream, openFrame(target)));
        const announced = inEnvelope(Buffer.alloc(LIMITS.messageBytes)).subarray(0, 5);
        await connection.send(frame(FRAME.data, 0, stream, announced));
        const byte = frame(FRAME.data, 0, stream, Buffer.from([0]));
        const sent = await flood(connection, () => byte, dose.floods);
        connection.reset();
        return sent;
      },
    },
    {
      name: 'empty sub-messages by the million',
      mayCost: 100,
      mayHoldUpMs: 3_000,
      run: async (target) => {
        const empties = inEnvelope(Buffer.alloc(LIMITS.messageBytes, EMPTY_STEP));
        const attackers = Array.from({ length: 20 }, () => ownTrajectory(target, APPEND, empties));
        for (const outcome of await Promise.all(attackers)) requireStatus(target, outcome, RESOURCE_EXHAUSTED);
        return attackers.length * (LIMITS.messageBytes / 2);
      },
    },
    {
      name: 'as many empty sub-messages as a message may hold',
      // Four of the eight messages are in memory at once, 50 MiB each. How much uncollected garbage there is beside
      // them depends on V8, within the heap of 768 MiB.
      mayCost: 768,
      // One such message takes up to a third of a second, and eight arrive together; several of them share a turn of
      // the event loop.
      mayHoldUpMs: 15_000,
      run: async (target) => {
        const empties = inEnvelope(Buffer.alloc(2 * LIMITS.messageValues, EMPTY_STEP));
        const attackers = Array.from({ length: 8 }, () => ownTrajectory(target, APPEND, empties));
        for (const outcome of await Promise.all(attackers)) requireStatus(target, outcome, 0);
        return attackers.length * LIMITS.messageValues;
      },
    },
    {
      name: 'small messages of many empty steps on many streams',
      // 80 of them together would take 1 GiB. At most 128 MiB of steps wait to be stored; the rest is garbage.
      mayCost: 512,
      mayHoldUpMs: 15_000,
      run: async (target) => {
        const steps = 32_000;
        const empties = inEnvelope(Buffer.alloc(2 * steps, EMPTY_STEP));
        const attackers = Array.from({ length: dose.streams }, () => ownTrajectory(target, APPEND, empties));
        for (const outcome of await Promise.all(attackers)) requireStatus(target, outcome, 0);
        return attackers.length * steps;
      },
    },
    {
      name: 'messages in messages, 10,000 deep',
      mayCost: 200,
      run: (target) => onManyStreams(target, 100, CREATE, inEnvelope(Buffer.alloc(20_000, Buffer.from([0x0b])))),
    },
    {
      name: 'JSON 100,000 deep',
      mayCost: 200,
      run: async (target) => {
        const deep = Buffer.from(`{"labels": ${'['.repeat(100_000)}${']'.repeat(100_000)}}`);
        const outcomes = await onSession(target, (session) =>
          Promise.all(
            Array.from({ length: 50 }, () => rawCall(session, CREATE, deep, { 'content-type': 'application/json' })),
          ),
        );
        for (const { http, body } of outcomes) {
          if (http !== (target.guarded ? 401 : 400))
            throw new Error(`JSON of that depth was answered ${http}: ${body.subarray(0, 500)}`);
        }
        return outcomes.length;
      },
    },
    {
      name: 'streams opened and reset at once',
      mayCost: 200,
      run: (target) => {
        const open = openFrame(target);
        return floodAgain(target, dose.floods / 5, (connection) => {
          const stream = connection.nextStream();
          return Buffer.concat([
            frame(FRAME.headers, FLAG.endHeaders, stream, grpcHeaders(APPEND)),
            frame(FRAME.data, 0, stream, open),
            frame(FRAME.reset, 0, stream, uint32(CANCEL)),
          ]);
        });
      },
    },
    {
      name: 'streams opened without end on one connection',
      mayCost: 200,
      run: async (target) => {
        const connection = await RawConnection.open(target.port);
        const open = openFrame(target);
        const sent = await flood(
          connection,
          () => {
            const stream = connection.nextStream();
            const headers = frame(FRAME.headers, FLAG.endHeaders, stream, grpcHeaders(APPEND));
            return Buffer.concat([headers, frame(FRAME.data, 0, stream, open)]);
          },
          dose.floods / 5,
        );
        connection.reset();
        return sent;
      },
    },
    controlFlood('PING flood', dose.floods, () => frame(FRAME.ping, 0, 0, Buffer.alloc(8))),
    controlFlood('SETTINGS flood', dose.floods, () => frame(FRAME.settings, 0, 0)),
    controlFlood('empty DATA flood', dose.floods, (stream) => frame(FRAME.data, 0, stream)),
    controlFlood('PRIORITY flood', dose.floods, (stream) => frame(FRAME.priority, 0, stream, Buffer.alloc(5))),
    controlFlood('WINDOW_UPDATE flood', dose.floods, (stream) => frame(FRAME.windowUpdate, 0, stream, uint32(1))),
    {
      name: 'CONTINUATION without end',
      mayCost: 64,
      run: async (target) => {
        const connection = await RawConnection.open(target.port);
        const stream = connection.nextStream();
        await connection.send(frame(FRAME.headers, 0, stream, grpcHeaders(APPEND)));
        const more = frame(FRAME.continuation, 0, stream, grpcHeaders('/x'));
        const sent = await flood(connection, () => more, dose.floods / 10);
        connection.reset();
        return sent;
      },
    },
    {
      name: 'DATA after the end, resets of a wrong length, windows beyond 2^31',
      mayCost: 200,
      run: async (target) => {
        const broken = [
          (stream: number) => frame(FRAME.data, FLAG.endStream, stream, Buffer.alloc(10)),
          (stream: number) => frame(FRAME.reset, 0, stream, Buffer.alloc(3)),
          (stream: number) => frame(FRAME.windowUpdate, 0, stream, uint32(2 ** 31 - 1)),
          () => frame(FRAME.windowUpdate, 0, 0, uint32(2 ** 31 - 1)),
          () => frame(FRAME.goaway, 0, 0, Buffer.concat([uint32(0), uint32(ENHANCE_YOUR_CALM)])),
          (stream: number) => frame(0xbe, 0xff, stream, Buffer.alloc(100)),
          (stream: number) => frame(FRAME.headers, FLAG.endHeaders, stream, Buffer.alloc(40, 0xff)),
        ];
        for (let i = 0; i < dose.broken; i += 1) {
          const connection = await RawConnection.open(target.port);
          const stream = await connection.request(CREATE, inEnvelope(new Uint8Array()));
          await connection.send(broken[i % broken.length]!(stream));
          await answered(connection, 2_000);
          connection.reset();
        }
        return dose.broken;
      },
    },
    {
      name: 'a message of 1 MiB whose end never comes, 100 times',
      mayCost: 200,
      run: async (target) => {
        const connections = await Promise.all(Array.from({ length: 10 }, () => RawConnection.open(target.port)));
        const most = inEnvelope(Buffer.alloc(MIB)).subarray(0, 200_000);
        for (const connection of connections) {
          for (let i = 0; i < 10; i += 1) {
            const stream = connection.nextStream();
            await connection.send(frame(FRAME.headers, FLAG.endHeaders, stream, grpcHeaders(APPEND)));
            for (let at = 0; at < most.length; at += 16_384) {
              await connection.send(frame(FRAME.data, 0, stream, most.subarray(at, at + 16_384)));
            }
          }
        }
        await Promise.all(connections.map((connection) => answered(connection)));
        for (const connection of connections) connection.reset();
        return 100;
      },
    },
  ];
}
