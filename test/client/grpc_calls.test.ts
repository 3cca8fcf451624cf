import { constants, type ServerHttp2Stream } from 'node:http2';
import { create, toBinary } from '@bufbuild/protobuf';
import { anyPack } from '@bufbuild/protobuf/wkt';
import { Code, ConnectError, type Interceptor } from '@connectrpc/connect';
import { describe, expect, it } from 'vitest';
import { LIMITS } from '../../gen/es/anabranch/v1/limits.js';
import { GetStateResponseSchema, PutStateResponseSchema } from '../../gen/es/anabranch/v1/state_service_pb.js';
import {
  AppendStepResponseSchema,
  AppendStepsResponseSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { ErrorInfoSchema } from '../../gen/es/google/rpc/error_details_pb.js';
import { StatusSchema } from '../../gen/es/google/rpc/status_pb.js';
import { errorMetadata, reasonOf } from '../../src/client/errors.ts';
import { envelope, inEnvelope } from '../wire/raw.ts';
import { type Answer, answering, GRPC, type RawPeer, startRawPeer } from './raw-peer.ts';

/** A message that every method can read: one unknown field of 1,000 bytes. */
const MESSAGE = inEnvelope(Buffer.concat([Buffer.from([0xa2, 0x06, 0xe8, 0x07]), Buffer.alloc(1000)]));
const OK = answering(envelope(AppendStepResponseSchema, { nextStepNumber: 7n }));

/** Answers a part of a message, and does this when the client has got it. */
function answeringPart(then: (stream: ServerHttp2Stream) => void): Answer {
  return (stream) => {
    // Node would end the body before it resets the stream.
    stream.respond(GRPC, { waitForTrailers: true });
    stream.write(MESSAGE.subarray(0, 500), () => setImmediate(() => then(stream)));
  };
}

function respond(headers: Record<string, string | number>, body: string | Buffer = ''): Answer {
  return (stream) => {
    stream.respond({ ...GRPC, ...headers });
    stream.end(body);
  };
}

async function collect<T>(messages: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = [];
  for await (const message of messages) all.push(message);
  return all;
}

async function failureOf(call: Promise<unknown>): Promise<ConnectError> {
  const error = await call.then(
    () => expect.fail('the call succeeded'),
    (thrown: unknown) => thrown,
  );
  expect(error).toBeInstanceOf(ConnectError);
  return error as ConnectError;
}

const TOO_LARGE = 4 * LIMITS.messageBytes + 1;

const INFO = { reason: 'STEP_CONFLICT', domain: 'anabranch.v1', metadata: { next_step_number: '7' } };
const DETAILS = Buffer.from(
  toBinary(
    StatusSchema,
    create(StatusSchema, {
      code: Code.Aborted,
      message: 'not the next 🌊',
      details: [anyPack(ErrorInfoSchema, create(ErrorInfoSchema, INFO))],
    }),
  ),
).toString('base64');
const CONFLICT = { 'grpc-status': '10', 'grpc-message': 'not the next', 'grpc-status-details-bin': DETAILS };

describe.each<[string, (peer: RawPeer) => Promise<unknown>]>([
  ['a unary call', ({ trajectories }) => trajectories.appendStep({})],
  ['a stream', ({ trajectories }) => collect(trajectories.readSteps({}))],
])('%s', (_what, call) => {
  it.each<[string, Answer, Code, RegExp | string]>([
    ['without a status', respond({}, ''), Code.Internal, 'protocol error: missing status'],
    ['with a message and no status', respond({}, MESSAGE), Code.Internal, 'protocol error: missing status'],
    ['of another content type', respond({ 'content-type': 'text/html' }, '<p>'), Code.Unknown, /text\/html/],
    ['with HTTP 503', respond({ ':status': 503 }, 'busy'), Code.Unavailable, 'HTTP 503'],
    ['with HTTP 404 and no body', respond({ ':status': 404 }), Code.Unimplemented, 'HTTP 404'],
    ['in an encoding', respond({ 'grpc-encoding': 'gzip' }), Code.Internal, 'unsupported response encoding "gzip"'],
    ['with a compressed message', answering(inEnvelope(Buffer.alloc(9), 1)), Code.Internal, /accepts no compression/],
    [
      'that announces a message beyond the limit',
      answering(Buffer.from([0, ...new Uint8Array(new Uint32Array([TOO_LARGE]).buffer).reverse()])),
      Code.ResourceExhausted,
      `the server sent a message of ${TOO_LARGE} bytes: at most ${TOO_LARGE - 1} are accepted`,
    ],
    ['with an invalid message', answering(inEnvelope(Buffer.alloc(9, 255))), Code.Internal, /invalid message/],
    ['that ends within a message', answering(MESSAGE.subarray(0, 500)), Code.Internal, /ended within a message/],
    ['with an unknown status', answering(MESSAGE, { 'grpc-status': '99' }), Code.Internal, 'invalid grpc-status: 99'],
    [
      'with an error whose text is not encoded',
      answering(Buffer.alloc(0), { 'grpc-status': '8', 'grpc-message': '100% full' }),
      Code.ResourceExhausted,
      '100% full',
    ],
    ['that is reset', answeringPart((stream) => stream.close(2)), Code.Internal, /INTERNAL_ERROR/],
    ['that is refused', (stream) => stream.close(7), Code.Unavailable, /REFUSED_STREAM/],
    ['that is cancelled', answeringPart((stream) => stream.close(8)), Code.Canceled, /HTTP\/2 code 8/],
    ['that is throttled', (stream) => stream.close(11), Code.ResourceExhausted, /ENHANCE_YOUR_CALM/],
    [
      'on a connection that is lost',
      answeringPart((stream) => stream.session?.socket.destroy()),
      Code.Unavailable,
      /connection was lost|ECONNRESET/,
    ],
    [
      'on a connection that is refused',
      answeringPart((stream) => stream.session?.goaway(constants.NGHTTP2_ENHANCE_YOUR_CALM)),
      Code.Unavailable,
      /error code 11/,
    ],
  ])('fails at a response %s, and the next one succeeds', async (_response, answer, code, text) => {
    await using peer = await startRawPeer([answer, OK]);
    const error = await failureOf(call(peer));
    expect({ code: Code[error.code], text: error.rawMessage }).toEqual({
      code: Code[code],
      text: typeof text === 'string' ? text : expect.stringMatching(text),
    });
    expect(await peer.trajectories.appendStep({})).toMatchObject({ nextStepNumber: 7n });
  });

  it.each<[string, Answer]>([
    ['in the trailers', answering(Buffer.alloc(0), { ...CONFLICT, 'x-more': 'yes' })],
    ['in the only headers', (stream) => stream.respond({ ...GRPC, ...CONFLICT, 'x-more': 'yes' }, { endStream: true })],
  ])('gets the details and the metadata of an error %s', async (_where, answer) => {
    await using peer = await startRawPeer([answer]);
    const error = await failureOf(call(peer));
    expect(error).toMatchObject({ code: Code.Aborted, rawMessage: 'not the next 🌊' });
    expect(reasonOf(error)).toBe('STEP_CONFLICT');
    expect(errorMetadata(error)).toEqual({ next_step_number: '7' });
    expect(error.metadata.get('x-more')).toBe('yes');
    expect(error.metadata.get('content-type')).toBe('application/grpc');
  });

  it('that is open when the server sends GOAWAY is completed, and the next one takes another connection', async () => {
    const leaving: Answer = (stream, headers) => {
      stream.session?.once('goaway', () => answering(MESSAGE)(stream, headers));
      stream.session?.close();
    };
    await using peer = await startRawPeer([leaving, answering(MESSAGE)]);
    await call(peer);
    await call(peer);
    expect(peer.sessions).toHaveLength(2);
  });
});

describe('a unary call', () => {
  it.each([
    ['no message', Buffer.alloc(0)],
    ['two messages', Buffer.concat([MESSAGE, MESSAGE])],
  ])('fails as UNIMPLEMENTED at a response with %s', async (_what, body) => {
    await using peer = await startRawPeer([answering(body)]);
    const error = await failureOf(peer.trajectories.appendStep({}));
    expect(error.code).toBe(Code.Unimplemented);
  });

  it('sends the headers of the caller and its deadline, and returns headers and trailers', async () => {
    const seen: unknown[] = [];
    const answer: Answer = (stream, headers) => {
      seen.push(headers);
      answering(MESSAGE, { 'grpc-status': '0', 'x-trailer': 'late' })(stream, headers);
    };
    await using peer = await startRawPeer([answer]);
    const read: unknown[] = [];
    await peer.trajectories.appendStep(
      {},
      {
        headers: { authorization: 'Bearer x', te: 'mine', 'user-agent': 'mine' },
        timeoutMs: 1500.5,
        onHeader: (headers) =>
          read.push(
            headers.get('content-type'),
            [...headers.keys()].filter((name) => name.startsWith(':')),
          ),
        onTrailer: (trailers) => read.push(trailers.get('x-trailer')),
      },
    );
    expect(seen).toEqual([
      expect.objectContaining({
        ':method': 'POST',
        ':path': '/anabranch.v1.TrajectoryService/AppendStep',
        'content-type': 'application/grpc+proto',
        'grpc-timeout': '1501m',
        authorization: 'Bearer x',
        te: 'trailers',
        'user-agent': 'mine',
      }),
    ]);
    expect(read).toEqual(['application/grpc', [], 'late']);
  });

  it('has no deadline with timeoutMs 0, and at most 8 digits', async () => {
    const sent: unknown[] = [];
    await using peer = await startRawPeer([
      (stream, headers) => {
        sent.push(headers['grpc-timeout']);
        OK(stream, headers);
      },
    ]);
    for (const timeoutMs of [0, 2 ** 40]) await peer.trajectories.appendStep({}, { timeoutMs });
    await peer.trajectories.appendStep({});
    expect(sent).toEqual([undefined, '99999999m', '60000m']);
  });

  it('passes interceptors the request and the response, and sends what they add', async () => {
    const seen: unknown[] = [];
    const interceptor: Interceptor = (next) => async (request) => {
      request.header.set('authorization', 'Bearer x');
      const response = await next(request);
      seen.push(request.url.replace(/.*\//, ''), response.header.get('content-type'));
      return response;
    };
    const answer: Answer = (stream, headers) => {
      seen.push(headers.authorization);
      answering(MESSAGE)(stream, headers);
    };
    await using peer = await startRawPeer([answer], { interceptors: [interceptor] });
    await peer.trajectories.appendStep({});
    await collect(peer.trajectories.readSteps({}));
    expect(seen).toEqual(['Bearer x', 'AppendStep', 'application/grpc', 'Bearer x', 'ReadSteps', 'application/grpc']);
  });
});

/** Resolves with the HTTP/2 code that a client resets its next call with. */
function resetOf(): { readonly answer: Answer; readonly begun: Promise<void>; readonly code: Promise<number> } {
  const begun = Promise.withResolvers<void>();
  const code = Promise.withResolvers<number>();
  const answer: Answer = (stream) => {
    stream.respond(GRPC);
    stream.write(MESSAGE);
    stream.on('close', () => code.resolve(stream.rstCode));
    begun.resolve();
  };
  return { answer, begun: begun.promise, code: code.promise };
}

describe('a call that the caller ends', () => {
  it.each<[string, (peer: RawPeer, signal: AbortSignal) => Promise<unknown>]>([
    ['a unary call', ({ trajectories }, signal) => trajectories.appendStep({}, { signal })],
    ['a stream', ({ trajectories }, signal) => collect(trajectories.readSteps({}, { signal }))],
  ])('by its signal is cancelled on the server, too: %s', async (_what, call) => {
    const { answer, begun, code } = resetOf();
    await using peer = await startRawPeer([answer]);
    const caller = new AbortController();
    const failure = failureOf(call(peer, caller.signal));
    await begun;
    caller.abort(new Error('enough'));
    expect(await failure).toMatchObject({ code: Code.Canceled, rawMessage: 'enough' });
    expect(await code).toBe(constants.NGHTTP2_CANCEL);
    const late = await failureOf(call(peer, caller.signal));
    expect(late).toMatchObject({ code: Code.Canceled, rawMessage: 'enough' });
  });

  it.each<[string, (peer: RawPeer) => Promise<unknown>]>([
    ['a unary call', ({ trajectories }) => trajectories.appendStep({}, { timeoutMs: 200 })],
    ['a stream', ({ trajectories }) => collect(trajectories.readSteps({}, { timeoutMs: 200 }))],
  ])('by its deadline is cancelled on the server, too: %s', async (_what, call) => {
    const { answer, code } = resetOf();
    await using peer = await startRawPeer([answer]);
    expect(await failureOf(call(peer))).toMatchObject({
      code: Code.DeadlineExceeded,
      rawMessage: 'the operation timed out',
    });
    expect(await code).toBe(constants.NGHTTP2_CANCEL);
  });
});

describe('a stream', () => {
  const CHUNK = 64 * 1024;
  const MANY = 300;

  it('delivers the messages that arrived before an error', async () => {
    const body = Buffer.concat([1n, 2n, 3n].map((next) => ackOf(next)));
    await using peer = await startRawPeer([answering(body, { 'grpc-status': '10' })]);
    const acks: bigint[] = [];
    const reading = (async () => {
      for await (const { ack } of peer.trajectories.appendSteps(nothing())) acks.push(ack?.nextStepNumber ?? -1n);
    })();
    expect((await failureOf(reading)).code).toBe(Code.Aborted);
    expect(acks).toEqual([1n, 2n, 3n]);
  });

  it('whose caller does not read stops the server, while other calls continue', async () => {
    let sent = 0;
    const answer: Answer = (stream, headers) => {
      if (headers[':path']?.endsWith('AppendStep')) return OK(stream, headers);
      stream.respond(GRPC, { waitForTrailers: true });
      stream.on('wantTrailers', () => stream.sendTrailers({ 'grpc-status': '0' }));
      const send = () => {
        if (sent === MANY) return stream.end();
        sent += 1;
        stream.write(envelope(GetStateResponseSchema, { chunk: new Uint8Array(CHUNK) }), send);
      };
      send();
    };
    await using peer = await startRawPeer([answer]);
    const messages = peer.states.getState({})[Symbol.asyncIterator]();
    await messages.next();
    for (let i = 0; i < 50; i++) await peer.trajectories.appendStep({});
    expect(sent).toBeLessThan(10);
    let received = 1;
    while ((await messages.next()).done !== true) received += 1;
    expect(received).toBe(MANY);
  });

  it('whose server does not read takes no more messages of its caller', async () => {
    let taken = 0;
    const received = Promise.withResolvers<number>();
    const reading = Promise.withResolvers<void>();
    const answer: Answer = async (stream, headers) => {
      if (headers[':path']?.endsWith('AppendStep')) return OK(stream, headers);
      await reading.promise;
      let bytes = 0;
      for await (const piece of stream) bytes += (piece as Buffer).length;
      received.resolve(bytes);
      answering(envelope(PutStateResponseSchema, {}))(stream, headers);
    };
    await using peer = await startRawPeer([answer]);
    async function* chunks() {
      for (; taken < MANY; taken++) yield { chunk: new Uint8Array(CHUNK) };
    }
    const putting = peer.states.putState(chunks());
    for (let i = 0; i < 50; i++) await peer.trajectories.appendStep({});
    expect(taken).toBeLessThan(10);
    reading.resolve();
    await putting;
    expect(taken).toBe(MANY);
    expect(await received.promise).toBeGreaterThan(MANY * CHUNK);
  });

  it.each<[string, Answer, Code | undefined]>([
    ['succeeds', (stream, headers) => answering(envelope(PutStateResponseSchema, {}))(stream, headers), undefined],
    ['fails', (stream) => stream.respond({ ...GRPC, 'grpc-status': '5' }, { endStream: true }), Code.NotFound],
    ['is reset', (stream) => stream.close(2), Code.Internal],
  ])('that %s before its request is complete releases the messages of its caller', async (_how, answer, code) => {
    await using peer = await startRawPeer([answer]);
    const released = Promise.withResolvers<void>();
    async function* chunks() {
      try {
        for (;;) yield { chunk: new Uint8Array(100) };
      } finally {
        released.resolve();
      }
    }
    const putting = peer.states.putState(chunks());
    if (code === undefined) await putting;
    else expect((await failureOf(putting)).code).toBe(code);
    await released.promise;
  });

  it('whose caller cannot continue fails with that error, and is cancelled on the server', async () => {
    const { answer, begun, code } = resetOf();
    await using peer = await startRawPeer([answer]);
    async function* chunks() {
      yield { chunk: new Uint8Array(100) };
      await begun;
      throw new Error('no more disk');
    }
    expect(await failureOf(peer.states.putState(chunks()))).toMatchObject({
      code: Code.Internal,
      rawMessage: 'no more disk',
    });
    expect(await code).toBe(constants.NGHTTP2_CANCEL);
  });

  it('takes a second connection when the streams of the first one are used, also if all begin at once', async () => {
    const COUNT = 100;
    const begun = Promise.withResolvers<void>();
    let streams = 0;
    await using peer = await startRawPeer([
      () => {
        streams += 1;
        if (streams === COUNT) begun.resolve();
      },
    ]);
    const caller = new AbortController();
    const read = () => collect(peer.trajectories.readSteps({}, { signal: caller.signal })).catch(() => undefined);
    const all = Array.from({ length: COUNT }, read);
    await begun.promise;
    expect(peer.sessions).toHaveLength(2);
    caller.abort();
    await Promise.all(all);
  });
});

function ackOf(nextStepNumber: bigint): Buffer {
  return envelope(AppendStepsResponseSchema, { ack: { nextStepNumber } });
}

async function* nothing(): AsyncGenerator<never> {}
