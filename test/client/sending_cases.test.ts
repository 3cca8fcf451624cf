import { readFileSync } from 'node:fs';
import { Code, ConnectError } from '@connectrpc/connect';
import { afterEach, describe, expect, it } from 'vitest';
import { connectClient, openWriter, reasonOf, type TrajectoryWriter } from '../../src/client/index.ts';
import { isTransient, Patience } from '../../src/client/retry.ts';
import { settingsOf } from '../../src/client/writer/contract.ts';
import { judge } from '../../src/client/writer/policy.ts';
import { FRAME_BYTES, FRAME_STEPS } from '../../src/client/writer/stream.ts';
import { TRAJECTORY } from './scripted-peer.ts';
import { type CaseError, errorOf, type StreamCase, startCase } from './stream_cases.ts';

/** One table for the writer and for the sender of the Python client (clients/python/tests/test_sending_cases.py). */
interface Cases {
  readonly defaults: Readonly<Record<string, number>>;
  readonly retries: readonly { readonly error: CaseError; readonly transient: boolean }[];
  readonly delays: readonly {
    readonly title: string;
    readonly random: number;
    readonly give_up_after_ms?: number;
    readonly failures: readonly CaseError[];
    /** Null where the error is final, or the client gives up. */
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
  readonly streams: readonly StreamCase[];
}

const cases = JSON.parse(readFileSync(new URL('sending_cases.json', import.meta.url), 'utf8')) as Cases;

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

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
    expect(isTransient(new TypeError('a mistake in the program'))).toBe(false);
  });

  it.each(cases.delays)('delays $title', ({ random, give_up_after_ms: limit, failures, delays_ms: expected }) => {
    const timing = { now: () => 0, random: () => random, sleep: () => Promise.resolve() };
    const patience = new Patience(limit ?? Number.POSITIVE_INFINITY, timing);
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

  it.each(cases.streams)('W12: $title', async (streamCase) => {
    const server = await startCase(streamCase);
    cleanups.push(() => server.stop());
    const found = await write(server.url, streamCase);
    const { durable, failure, streams = streamCase.streams.length, connections = 1 } = streamCase.writer;
    const { calls = [], markers = [], waited_ms: waitedMs = 0 } = streamCase.writer;
    const seen = server.seen();
    expect({ ...found, ...seen }).toMatchObject({ problems: [], durable, failure, streams, calls, markers });
    expect(seen.connections).toBeGreaterThanOrEqual(connections);
    expect(seen.waited_ms).toBeGreaterThanOrEqual(waitedMs);
  });
});

function delayAfter(patience: Patience, error: ConnectError): number | null {
  try {
    return patience.next(error).delayMs;
  } catch (thrown) {
    const gaveUp = thrown instanceof ConnectError && thrown.cause === error && thrown.code === Code.DeadlineExceeded;
    if (!gaveUp) expect(thrown).toBe(error);
    return null;
  }
}

/** Appends the steps of a case. Returns what the client reports at the end. */
async function write(address: string, streamCase: StreamCase): Promise<{ durable: number; failure: string }> {
  const { start = 0, kib = [], window_steps: maxUnackedSteps, window_kib: windowKib } = streamCase;
  const { silence_ms: silenceMs, give_up_after_ms: giveUpAfterMs, take_over: takeOver = true } = streamCase;
  const client = connectClient({ address });
  cleanups.push(() => client.close());
  let writer: TrajectoryWriter | undefined;
  try {
    writer = await openWriter(client, {
      trajectoryId: TRAJECTORY,
      takeOver,
      ...(streamCase.create && { create: { trajectory: {} } }),
      ...(maxUnackedSteps && { maxUnackedSteps }),
      ...(windowKib && { maxUnackedBytes: windowKib * 1024 }),
      ...(silenceMs && { silenceMs }),
      ...(giveUpAfterMs && { giveUpAfterMs }),
    });
    let number = start;
    for (const batch of streamCase.batches) {
      const steps = Array.from({ length: batch }, (_, i) => {
        const size = (kib[number + i - start] ?? 0) * 1024;
        return { reward: number + i, ...(size > 0 && { observations: [{ content: { text: 'x'.repeat(size) } }] }) };
      });
      number += batch;
      await Promise.all(steps.map((step) => writer?.append(step)));
    }
    await writer.close();
    return { durable: Number(writer.ackedNextStepNumber), failure: '' };
  } catch (error) {
    return { durable: Number(writer?.ackedNextStepNumber ?? start), failure: reasonOf(error) ?? codeOf(error) };
  }
}

function codeOf(error: unknown): string {
  if (!(error instanceof ConnectError)) throw error;
  return Code[error.code].replaceAll(/(?<=[a-z])[A-Z]/g, '_$&').toUpperCase();
}
