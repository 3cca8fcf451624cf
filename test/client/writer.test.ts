import { Code, ConnectError } from '@connectrpc/connect';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import type { AppendStepsRequest } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { connectClient, openWriter, reasonOf, type WriterEvent, type WriterOptions } from '../../src/client/index.ts';
import { Writer } from '../../src/client/writer/writer.ts';
import { connected } from './connected.ts';
import { type AppendScript, ack, obliging, opened, refusal, TRAJECTORY, UID } from './scripted-peer.ts';

const step = (n: number) => ({ reward: n });
const options = (more: Partial<WriterOptions> = {}): WriterOptions => ({ trajectoryId: TRAJECTORY, ...more });

/** Output of the process that a test must not cause. */
let unhandled: unknown[];
const remember = (reason: unknown) => unhandled.push(reason);
beforeEach(() => {
  unhandled = [];
  process.on('unhandledRejection', remember);
});
afterEach(() => {
  process.off('unhandledRejection', remember);
  expect(unhandled).toEqual([]);
});

/** Grants, reads this many steps without acking them, then continues with the given function. */
function afterSteps(
  epoch: bigint,
  end: bigint,
  count: number,
  then: () => AsyncGenerator<ReturnType<typeof ack>>,
): AppendScript {
  return async function* ({ next }) {
    yield opened(epoch, end);
    for (let got = 0; got < count; ) got += (await next())?.steps.length ?? count;
    yield* then();
  };
}

const failing = (error: ConnectError) =>
  // biome-ignore lint/correctness/useYield: it only throws
  async function* (): AsyncGenerator<never> {
    throw error;
  };

describe('opening', () => {
  it('W12: the first open has a writer id of its own and the expected number, but no uid and no epoch', async () => {
    const { peer, client } = await connected({ append: [obliging(1n, 7n), obliging(1n, 7n)] });
    const one = await openWriter(client, options({ expectedNextStepNumber: 7n }));
    const other = await openWriter(client, options());
    expect(peer.opens[0]).toMatchObject({ trajectoryId: TRAJECTORY, writerId: one.writerId, uid: '' });
    expect(peer.opens[0]?.takeOverEpoch).toBeUndefined();
    expect(peer.opens[0]?.expectedNextStepNumber).toBe(7n);
    expect(peer.opens[1]?.expectedNextStepNumber).toBeUndefined();
    expect(one.writerId).not.toBe(other.writerId);
    await Promise.all([one.close(), other.close()]);
  });

  it('W13: the opened writer has the next step number, epoch, uid and status', async () => {
    const { client } = await connected({ append: [obliging(4n, 250n)] });
    const writer = await openWriter(client, options());
    expect(writer).toMatchObject({ nextStepNumber: 250n, ackedNextStepNumber: 250n, epoch: 4n, uid: UID, status: 3 });
    expect((await writer.append(step(1))).stepNumber).toBe(250n);
    await writer.close();
  });

  it('W12: until its first opened, it takes over with the epoch that each refusal names', async () => {
    const fenced = (epoch: string) =>
      failing(refusal(Code.FailedPrecondition, 'WRITER_FENCED', { writer_id: 'other', writer_epoch: epoch }));
    const { peer, client } = await connected({ append: [fenced('5'), fenced('6'), obliging(7n, 3n)] });
    const writer = await openWriter(client, options({ expectedNextStepNumber: 3n }));
    expect(peer.opens.map((open) => open.takeOverEpoch)).toEqual([undefined, 5n, 6n]);
    expect(peer.opens.map((open) => open.expectedNextStepNumber)).toEqual([3n, 3n, 3n]);
    expect(new Set(peer.opens.map((open) => open.writerId))).toEqual(new Set([writer.writerId]));
    await writer.close();
  });

  it('W12: with takeOver disabled, it does not fence another writer', async () => {
    const fenced = failing(
      refusal(Code.FailedPrecondition, 'WRITER_FENCED', { writer_id: 'other', writer_epoch: '5' }),
    );
    const { peer, client } = await connected({ append: [fenced, obliging(6n, 0n)] });
    const error = await openWriter(client, options({ takeOver: false })).catch((e: unknown) => e);
    expect(reasonOf(error)).toBe('WRITER_FENCED');
    expect(peer.opens).toHaveLength(1);
  });

  it('W12: a first open whose answer was lost is retried', async () => {
    const { peer, client } = await connected({
      append: [failing(new ConnectError('gone', Code.Unavailable)), obliging(2n, 0n)],
    });
    const writer = await openWriter(client, options());
    expect(peer.opens[1]).toMatchObject({ writerId: writer.writerId, uid: '' });
    await writer.close();
  });

  it('W12: sends create until its first opened, each time with the same request id, and then only the uid', async () => {
    const lost = () => failing(new ConnectError('gone', Code.Unavailable));
    const cut = afterSteps(1n, 0n, 1, failing(new ConnectError('gone', Code.Unavailable)));
    const { peer, client } = await connected({ append: [lost(), lost(), cut, obliging(2n, 0n)] });
    const create = { trajectory: { name: 'new', labels: { a: 'b' } } };
    const writer = await openWriter(client, options({ create }));
    await writer.append(step(0));
    const sent = peer.opens.map((open) => [open.uid, open.create?.trajectory]);
    const [, first] = sent[0]!;
    expect(first).toMatchObject({ trajectoryId: TRAJECTORY, name: 'new', labels: { a: 'b' } });
    expect(first).toHaveProperty('requestId', expect.stringMatching(/^[0-9a-f-]{36}$/));
    expect(sent).toEqual([
      ['', first],
      ['', first],
      ['', first],
      [UID, undefined],
    ]);
    expect(create).toEqual({ trajectory: { name: 'new', labels: { a: 'b' } } });
    await writer.close();
  });

  it('creates a branch, with the request id of the caller', async () => {
    const { peer, client } = await connected({ append: [obliging(1n, 3n)] });
    const branch = { trajectoryId: UID, stepNumber: 2n, requestId: 'mine' };
    const writer = await openWriter(client, options({ create: { branch } }));
    expect(peer.opens[0]?.create?.branch).toMatchObject({ ...branch, branchId: TRAJECTORY });
    expect(writer.nextStepNumber).toBe(3n);
    await writer.close();
  });

  it('a permanent refusal is reported at once', async () => {
    const { peer, client } = await connected({
      append: [failing(refusal(Code.NotFound, 'TRAJECTORY_NOT_FOUND', { trajectory_id: TRAJECTORY }))],
    });
    const error = await openWriter(client, options()).catch((e: unknown) => e);
    expect(reasonOf(error)).toBe('TRAJECTORY_NOT_FOUND');
    expect(peer.opens).toHaveLength(1);
  });

  it('waits for an unreachable server no longer than configured, and then reports the cause', async () => {
    const client = connectClient({ address: '127.0.0.1:1' });
    const error = await openWriter(client, options({ giveUpAfterMs: 150 })).catch((e: unknown) => e);
    expect(error).toMatchObject({ code: Code.DeadlineExceeded });
    expect(String(error)).toMatch(/without progress; last error: .*ECONNREFUSED/);
  });

  it('an aborted signal ends the waiting', async () => {
    const abort = new AbortController();
    const opening = openWriter(connectClient({ address: '127.0.0.1:1' }), {
      ...options({ signal: abort.signal }),
      onEvent: ({ type }) => type === 'cut' && abort.abort(new Error('enough')),
    });
    await expect(opening).rejects.toThrow('enough');
  });
});

describe('after a cut', () => {
  it('W12: it opens with uid and last epoch, and replays the same bytes from its first unacked step, also below the returned end', async () => {
    const first: AppendStepsRequest[] = [];
    const second: AppendStepsRequest[] = [];
    const cut: AppendScript = async function* ({ next }) {
      yield opened(1n, 0n);
      for (let got = 0; got < 4; ) {
        const frame = await next();
        got += frame?.steps.length ?? 4;
        if (frame !== undefined) first.push(frame);
      }
      yield ack(1n);
      throw new ConnectError('connection lost', Code.Unavailable);
    };
    // All four were stored, but only one was acked.
    const { peer, client } = await connected({ append: [cut, obliging(2n, 4n, second)] });
    const events: WriterEvent[] = [];
    const writer = await openWriter(client, options({ expectedNextStepNumber: 0n, onEvent: (e) => events.push(e) }));
    const results = await Promise.all([1, 2, 3, 4].map((n) => writer.append(step(n))));
    expect(results.map((r) => r.stepNumber)).toEqual([0n, 1n, 2n, 3n]);
    expect(peer.opens[1]).toMatchObject({ uid: UID, takeOverEpoch: 1n, writerId: writer.writerId });
    expect(peer.opens[1]?.expectedNextStepNumber).toBeUndefined();
    const replayed = second.flatMap((frame) => frame.steps);
    expect(replayed).toEqual(first.flatMap((frame) => frame.steps).slice(1));
    expect(events.map((e) => e.type)).toEqual(['opened', 'cut', 'opened']);
    expect(events[2]).toMatchObject({ epoch: 2n, nextStepNumber: 4n, replaying: 3n });
    await writer.close();
  });

  it('W12: fenced by a late stream of its own, it opens again and continues', async () => {
    const own: AppendScript = async function* ({ open, next }) {
      yield opened(1n, 0n);
      await next();
      throw refusal(Code.FailedPrecondition, 'WRITER_FENCED', { writer_id: open.writerId, writer_epoch: '2' });
    };
    const { peer, client } = await connected({ append: [own, obliging(3n, 0n)] });
    const writer = await openWriter(client, options());
    expect(await writer.append(step(1))).toEqual({ stepNumber: 0n, nextStepNumber: 1n });
    expect(peer.opens).toHaveLength(2);
    await writer.close();
  });

  it('W12: fenced by another writer, it ends: everything unacked and later rejects, and nothing is sent again', async () => {
    const other = afterSteps(
      1n,
      0n,
      1,
      failing(refusal(Code.FailedPrecondition, 'WRITER_FENCED', { writer_id: 'other', writer_epoch: '2' })),
    );
    const { peer, client } = await connected({ append: [other, obliging(3n, 0n)] });
    const writer = await openWriter(client, options());
    const errors = await Promise.all([writer.append(step(1)).catch(reasonOf), writer.append(step(2)).catch(reasonOf)]);
    expect(errors).toEqual(['WRITER_FENCED', 'WRITER_FENCED']);
    expect(await writer.append(step(3)).catch(reasonOf)).toBe('WRITER_FENCED');
    expect(await writer.flush().catch(reasonOf)).toBe('WRITER_FENCED');
    expect(await writer.close().catch(reasonOf)).toBe('WRITER_FENCED');
    expect(peer.opens).toHaveLength(1);
  });

  it.each([
    ['the transport lost the connection (UNAVAILABLE)', new ConnectError('x', Code.Unavailable)],
    ['a reset came as CANCELLED', new ConnectError('x', Code.Canceled)],
    ['a refused stream came as INTERNAL without a reason', new ConnectError('REFUSED_STREAM', Code.Internal)],
    ['the server drains', refusal(Code.Unavailable, 'SERVER_DRAINING', {}, 1)],
    ['the database is unreachable', refusal(Code.Unavailable, 'DATABASE_UNAVAILABLE', {}, 1)],
    ['the disk is full', refusal(Code.ResourceExhausted, 'STORAGE_FULL', {}, 1)],
    ['a deadline on the way passed', refusal(Code.DeadlineExceeded, 'DEADLINE_EXCEEDED')],
    ['a message did not arrive in time', refusal(Code.DeadlineExceeded, 'MESSAGE_TIMEOUT')],
    ['the server had an internal error, once', refusal(Code.Internal, 'INTERNAL', { error_id: 'e1' })],
  ])('opens again and replays when %s', async (_, error) => {
    const { client } = await connected({ append: [afterSteps(1n, 0n, 1, failing(error)), obliging(2n, 0n)] });
    const writer = await openWriter(client, options());
    expect((await writer.append(step(1))).stepNumber).toBe(0n);
    await writer.close();
  });

  it('opens again when the connection breaks, and when the server ends the stream with unacked steps', async () => {
    const { peer, client } = await connected({
      append: [
        // biome-ignore lint/correctness/useYield: it only breaks
        afterSteps(1n, 0n, 1, async function* () {
          peer.breakConnections();
        }),
        afterSteps(2n, 0n, 1, async function* () {}),
        obliging(3n, 0n),
      ],
    });
    const writer = await openWriter(client, options());
    expect((await writer.append(step(1))).stepNumber).toBe(0n);
    expect(writer.epoch).toBe(3n);
    await writer.close();
  });

  it('an error of the server that the same steps cause three times in a row is reported, not retried forever', async () => {
    const fault = (epoch: bigint) =>
      afterSteps(epoch, 0n, 1, failing(refusal(Code.Internal, 'INTERNAL', { error_id: 'e' })));
    const { peer, client } = await connected({ append: [fault(1n), fault(2n), fault(3n), obliging(4n, 0n)] });
    const writer = await openWriter(client, options());
    expect(await writer.append(step(1)).catch(reasonOf)).toBe('INTERNAL');
    expect(peer.opens).toHaveLength(3);
  });

  it('honours RetryInfo', async () => {
    const full = afterSteps(1n, 0n, 1, failing(refusal(Code.ResourceExhausted, 'STORAGE_FULL', {}, 120)));
    const { client } = await connected({ append: [full, obliging(2n, 0n)] });
    const events: WriterEvent[] = [];
    const writer = await openWriter(client, options({ onEvent: (event) => events.push(event) }));
    await writer.append(step(1));
    const cut = events.find((event) => event.type === 'cut');
    expect(cut?.retryInMs).toBeGreaterThanOrEqual(120);
    await writer.close();
  });

  it('gives up when nothing is acked for too long, with the cause', async () => {
    const full: AppendScript[] = [1n, 2n, 3n, 4n, 5n, 6n, 7n, 8n].map((epoch) =>
      afterSteps(epoch, 0n, 1, failing(refusal(Code.ResourceExhausted, 'STORAGE_FULL', {}, 50))),
    );
    const { client } = await connected({ append: full });
    const writer = await openWriter(client, options({ giveUpAfterMs: 200 }));
    await expect(writer.append(step(1))).rejects.toThrow(/without progress; last error: .*STORAGE_FULL/);
  });

  it('treats a server as dead if an answer is due and it is silent', async () => {
    const mute: AppendScript = async function* ({ next, context }) {
      yield opened(1n, 0n);
      await next();
      await new Promise((resolve) => context.signal.addEventListener('abort', resolve));
    };
    const { client } = await connected({ append: [mute, obliging(2n, 0n)] });
    const events: WriterEvent[] = [];
    const writer = await openWriter(client, options({ silenceMs: 500, onEvent: (event) => events.push(event) }));
    expect((await writer.append(step(1))).stepNumber).toBe(0n);
    expect(String((events[1] as { error: Error }).error)).toContain('the server sent nothing for 0.5 s');
    await writer.close();
  });

  it('a caller that blocks the event loop for longer is not mistaken for a silent server', async () => {
    const { client } = await connected({ append: [obliging(1n, 0n)] });
    const events: WriterEvent[] = [];
    const writer = await openWriter(client, options({ silenceMs: 500, onEvent: (event) => events.push(event) }));
    for (let n = 0; n < 3; n += 1) {
      const appended = writer.append(step(n));
      // The server in this same process answers the steps as soon as the event loop runs; meanwhile the caller blocks
      // it.
      await new Promise((resolve) => setImmediate(resolve));
      const until = performance.now() + 300;
      while (performance.now() < until);
      await appended;
    }
    expect(events.map((event) => event.type)).toEqual(['opened']);
    await writer.close();
  });

  it('an idle writer opens again only when it has something to write', async () => {
    const idle: AppendScript = async function* () {
      yield opened(1n, 0n);
      throw refusal(Code.Unavailable, 'SERVER_DRAINING', {}, 60_000);
    };
    const { peer, client } = await connected({ append: [idle, obliging(2n, 0n)] });
    const cut = Promise.withResolvers<void>();
    const writer = await openWriter(client, options({ onEvent: ({ type }) => type === 'cut' && cut.resolve() }));
    await cut.promise;
    expect(peer.opens).toHaveLength(1);
    await writer.append(step(1));
    expect(peer.opens).toHaveLength(2);
    await writer.close();
  });
});

describe('a writer that was idle', () => {
  it('has the whole retry limit from its next append on, however long ago it lost its stream', async () => {
    const draining = failing(refusal(Code.Unavailable, 'SERVER_DRAINING', {}, 60_000));
    const lost = failing(new ConnectError('gone', Code.Unavailable));
    const idle: AppendScript = async function* () {
      yield opened(1n, 0n);
      yield* draining();
    };
    const { client } = await connected({ append: [idle, lost, obliging(2n, 0n)] });
    const clock = { time: 0, now: () => clock.time, random: () => 1, sleep: () => Promise.resolve() };
    const cut = Promise.withResolvers<void>();
    const onEvent = ({ type }: WriterEvent) => type === 'cut' && cut.resolve();
    const writer = new Writer(client, options({ giveUpAfterMs: 30_000, onEvent }), clock);
    await writer.opened();
    await cut.promise;
    clock.time += 3_600_000;
    expect((await writer.append(step(1))).stepNumber).toBe(0n);
    await writer.close();
  });
});

describe('answers that violate the protocol end the writer (W4, W12)', () => {
  const second = (answer: AppendScript): AppendScript[] => [
    afterSteps(1n, 5n, 3, async function* () {
      yield ack(7n);
      throw new ConnectError('cut', Code.Unavailable);
    }),
    answer,
  ];
  const reopenedAt = (epoch: bigint, end: bigint) => second(obliging(epoch, end));
  const duringFirst = (answers: () => AsyncGenerator<ReturnType<typeof ack>>) => [afterSteps(1n, 5n, 3, answers)];

  it.each<[string, AppendScript[], RegExp, maxUnackedSteps?: number]>([
    ['an end below what it acked', reopenedAt(2n, 6n), /has only steps below 6, but acked those below 7/],
    [
      'an end beyond the steps of the writer',
      reopenedAt(2n, 9n),
      /has steps below 9, but this writer appended only those below 8/,
    ],
    ['an epoch that does not rise', reopenedAt(1n, 7n), /granted epoch 1 after epoch 1/],
    [
      'an ack beyond the steps sent on this stream, but within the steps of the writer',
      [
        afterSteps(1n, 5n, 1, failing(new ConnectError('cut', Code.Unavailable))),
        afterSteps(2n, 5n, 1, async function* () {
          yield ack(7n);
        }),
      ],
      /acked steps below 7, but this stream sent only those below 6/,
      1,
    ],
    [
      'an ack below the previous one',
      duringFirst(async function* () {
        yield ack(7n);
        yield ack(6n);
      }),
      /acked steps below 6 after it had acked those below 7/,
    ],
    [
      'an ack before the grant',
      [
        async function* () {
          yield ack(0n);
        },
      ],
      /before it accepted the stream/,
    ],
    [
      'two grants',
      duringFirst(async function* () {
        yield opened(2n, 5n);
      }),
      /accepted one stream twice/,
    ],
    [
      'a seal that was not requested',
      duringFirst(async function* () {
        yield { sealed: { status: Status.COMPLETED, nextStepNumber: 8n } };
      }),
      /a seal that this writer did not request/,
    ],
  ])('%s', async (_, append, said, maxUnackedSteps = 100) => {
    const { client } = await connected({ append });
    const writing = async () => {
      const writer = await openWriter(client, options({ maxUnackedSteps }));
      await Promise.all([1, 2, 3].map((n) => writer.append(step(n))));
    };
    await expect(writing()).rejects.toThrow(said);
  });
});
