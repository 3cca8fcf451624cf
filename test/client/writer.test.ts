import { Code, ConnectError } from '@connectrpc/connect';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { AppendStepsRequest } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { connectClient, openWriter, type WriterEvent, type WriterOptions } from '../../src/client/index.ts';
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
