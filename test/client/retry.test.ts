import { Code, ConnectError } from '@connectrpc/connect';
import { describe, expect, it } from 'vitest';
import { isTransient, Patience, type Timing } from '../../src/client/retry.ts';
import { judge } from '../../src/client/writer/policy.ts';
import { refusal } from './scripted-peer.ts';

const cut = new ConnectError('cut', Code.Unavailable);

function timing(random = 1): Timing & { time: number } {
  const self = { time: 0, now: () => self.time, random: () => random, sleep: () => Promise.resolve() };
  return self;
}

describe('isTransient', () => {
  it('a lost connection is transient, a refusal of the request is not', () => {
    const transient = [
      Code.Unavailable,
      Code.Canceled,
      Code.Aborted,
      Code.Internal,
      Code.Unknown,
      Code.DeadlineExceeded,
    ];
    const meant = [Code.InvalidArgument, Code.NotFound, Code.FailedPrecondition, Code.OutOfRange, Code.Unauthenticated];
    expect(transient.filter((code) => !isTransient(new ConnectError('x', code)))).toEqual([]);
    expect(meant.filter((code) => isTransient(new ConnectError('x', code)))).toEqual([]);
    expect(isTransient(new TypeError('a mistake in the program'))).toBe(false);
  });

  it('the reason of the server takes precedence over the code', () => {
    expect(isTransient(refusal(Code.ResourceExhausted, 'STORAGE_FULL'))).toBe(true);
    expect(isTransient(refusal(Code.Unavailable, 'STORAGE_LOST'))).toBe(true);
    expect(isTransient(refusal(Code.ResourceExhausted, 'MESSAGE_TOO_LARGE'))).toBe(false);
    expect(isTransient(refusal(Code.Aborted, 'TRAJECTORY_DELETED'))).toBe(false);
    expect(isTransient(refusal(Code.Unavailable, 'A_REASON_OF_A_NEWER_SERVER'))).toBe(true);
  });
});

describe('Patience', () => {
  it('doubles the delay up to five seconds, and resets after progress', () => {
    const patience = new Patience(Number.POSITIVE_INFINITY, timing());
    const delays = Array.from({ length: 8 }, () => patience.next(cut).delayMs);
    expect(delays).toEqual([100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    patience.progress();
    expect(patience.next(cut)).toEqual({ attempt: 1, delayMs: 100 });
  });

  it('spreads many clients over the whole delay, after the delay that the server requires', () => {
    expect(new Patience(1e9, timing(0)).next(cut).delayMs).toBe(0);
    expect(new Patience(1e9, timing(0.5)).next(refusal(Code.Unavailable, 'SERVER_DRAINING', {}, 700)).delayMs).toBe(
      750,
    );
  });

  it('ends when the next attempt would be too late, counted from the first failure after the last progress', () => {
    const clock = timing(0);
    const patience = new Patience(1000, clock);
    patience.next(cut);
    clock.time = 900;
    patience.progress();
    patience.next(cut);
    clock.time = 1899;
    patience.next(cut);
    clock.time = 1900;
    expect(() => patience.next(cut)).toThrow('gave up after 1 s without progress; last error: [unavailable] cut');
  });
});

describe('judge (W12)', () => {
  const situation = { writerId: 'me', everOpened: false, takeOver: true, shared: true };
  const fenced = (writer: string, epoch = '5') =>
    refusal(Code.FailedPrecondition, 'WRITER_FENCED', { writer_id: writer, writer_epoch: epoch });

  it('takes over only before its first opened, and only if it is allowed to and knows the epoch', () => {
    expect(judge(fenced('other'), situation)).toEqual({ do: 'takeOver', epoch: 5n });
    for (const other of [{ everOpened: true }, { takeOver: false }]) {
      expect(judge(fenced('other'), { ...situation, ...other })).toEqual({ do: 'retryOrFail' });
    }
    expect(judge(fenced('other', ''), situation)).toEqual({ do: 'retryOrFail' });
  });

  it('opens again if its own earlier stream fenced it, before and after the first opened', () => {
    expect(judge(fenced('me'), situation)).toEqual({ do: 'reopen' });
    expect(judge(fenced('me'), { ...situation, everOpened: true, takeOver: false })).toEqual({ do: 'reopen' });
  });

  it('sends steps one at a time after a refusal of the content of one of several', () => {
    const invalid = refusal(Code.InvalidArgument, 'INVALID_REQUEST');
    expect(judge(invalid, { ...situation, everOpened: true })).toEqual({ do: 'isolate' });
    expect(judge(invalid, { ...situation, everOpened: true, shared: false })).toEqual({ do: 'retryOrFail' });
    expect(judge(invalid, situation)).toEqual({ do: 'retryOrFail' });
  });
});
