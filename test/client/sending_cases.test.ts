import { readFileSync } from 'node:fs';
import { Code, ConnectError } from '@connectrpc/connect';
import { describe, expect, it } from 'vitest';
import { isTransient, Patience } from '../../src/client/retry.ts';
import { judge } from '../../src/client/writer/policy.ts';
import { settingsOf } from '../../src/client/writer/settings.ts';
import { FRAME_BYTES, FRAME_STEPS } from '../../src/client/writer/stream.ts';
import { refusal } from './scripted-peer.ts';

interface CaseError {
  readonly code: string;
  readonly reason: string;
  readonly metadata: Record<string, string>;
  readonly retry_after_ms: number;
}

/** One table for the writer and for the sender of the Python client (clients/python/tests/test_sending_cases.py). */
interface Cases {
  readonly defaults: Readonly<Record<string, number>>;
  readonly retries: readonly { readonly error: CaseError; readonly transient: boolean }[];
  readonly delays: readonly {
    readonly title: string;
    readonly random: number;
    readonly failures: readonly CaseError[];
    /** Null where the error is final. */
    readonly delays_ms: readonly (number | null)[];
  }[];
  readonly verdicts: readonly {
    readonly title: string;
    readonly error: CaseError;
    readonly situation: {
      readonly writer_id: string;
      readonly ever_opened: boolean;
      readonly take_over: boolean;
      readonly shared: boolean;
    };
    readonly writer: string;
  }[];
}

const cases = JSON.parse(readFileSync(new URL('sending_cases.json', import.meta.url), 'utf8')) as Cases;

describe('the table of cases that the writer shares with the Python client', () => {
  it('has the bounds of frames and of the window, and the time of silence', () => {
    const { maxUnackedSteps, maxUnackedBytes, silenceMs } = settingsOf({ trajectoryId: '' });
    expect(cases.defaults).toEqual({
      frame_steps: FRAME_STEPS,
      frame_bytes: FRAME_BYTES,
      window_steps: maxUnackedSteps,
      window_bytes: maxUnackedBytes,
      silence_ms: silenceMs,
    });
  });

  it('has errors after which a retry can succeed, and others', () => {
    const found = cases.retries.map(({ error }) => ({ error, transient: isTransient(errorOf(error)) }));
    expect(found).toEqual(cases.retries);
  });

  it.each(cases.delays)('delays $title', ({ random, failures, delays_ms: expected }) => {
    const timing = { now: () => 0, random: () => random, sleep: () => Promise.resolve() };
    const patience = new Patience(Number.POSITIVE_INFINITY, timing);
    expect(failures.map((failure) => delayAfter(patience, errorOf(failure)))).toEqual(expected);
  });

  it.each(cases.verdicts)('$title', ({ error: described, situation, writer }) => {
    const error = errorOf(described);
    const { writer_id: writerId, ever_opened: everOpened, take_over: takeOver, shared } = situation;
    const verdict = judge(error, { writerId, everOpened, takeOver, shared });
    const names = { takeOver: 'take_over', reopen: 'reopen', isolate: 'isolate' };
    const found = verdict.do === 'retryOrFail' ? (isTransient(error) ? 'retry' : 'fail') : names[verdict.do];
    expect(found).toBe(writer);
  });
});

function delayAfter(patience: Patience, error: ConnectError): number | null {
  try {
    return patience.next(error).delayMs;
  } catch (thrown) {
    expect(thrown).toBe(error);
    return null;
  }
}

function errorOf({ code, reason, metadata, retry_after_ms: retryAfterMs }: CaseError): ConnectError {
  const words = code.toLowerCase().split('_');
  const name = words.map((word) => word[0]!.toUpperCase() + word.slice(1)).join('');
  const known = Code[(name === 'Cancelled' ? 'Canceled' : name) as keyof typeof Code];
  if (reason === '') return new ConnectError('failed', known);
  return refusal(known, reason, metadata, retryAfterMs === 0 ? undefined : retryAfterMs);
}
