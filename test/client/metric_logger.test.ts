import { Code, ConnectError } from '@connectrpc/connect';
import { describe, expect, it } from 'vitest';
import type { LogMetricsRequest } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { type MetricLoggerOptions, openMetricLogger, reasonOf } from '../../src/client/index.ts';
import { connected } from './connected.ts';
import { refusal } from './scripted-peer.ts';

const RUN = '0191c5a0-0000-7000-8000-0000000000bb';
const STAGE = '0191c5a0-0000-7000-8000-0000000000cc';
const NEVER = 2 ** 30;

/** A logger, and the calls that reached the server; `answers` may refuse the first ones. */
async function logging(options: Partial<MetricLoggerOptions> = {}, answers: (ConnectError | Promise<void>)[] = []) {
  const calls: LogMetricsRequest[] = [];
  const { client } = await connected({
    runs: {
      async logMetrics(request) {
        calls.push(request);
        const answer = answers.shift();
        if (answer instanceof ConnectError) throw answer;
        await answer;
        return {};
      },
    },
  });
  const logger = openMetricLogger(client, { runId: RUN, flushAfterMs: NEVER, ...options });
  const steps = () => calls.map(({ points }) => points.map(({ metricStep }) => Number(metricStep)));
  return { logger, calls, steps };
}

describe('a metric logger', () => {
  it('M1: sends points as they were logged: key, step, value, stage', async () => {
    const { logger, calls } = await logging({ stageId: STAGE });
    logger.log('loss', 1, 0.5);
    logger.log('loss', 2n ** 62n, Number.NaN);
    expect(calls).toEqual([]);
    await logger.close();
    expect(calls).toHaveLength(1);
    expect(calls[0]).toMatchObject({
      runId: RUN,
      points: [
        { key: 'loss', metricStep: 1n, value: 0.5, stageId: STAGE },
        { key: 'loss', metricStep: 2n ** 62n, value: Number.NaN, stageId: STAGE },
      ],
    });
  });

  it('flushes by size', async () => {
    const { logger, steps } = await logging({ batchPoints: 2 });
    for (const step of [0, 1, 2]) logger.log('loss', step, 1);
    await expect.poll(() => logger.waiting).toBe(0);
    expect(steps().flat()).toEqual([0, 1, 2]);
    logger.log('loss', 3, 1);
    await logger.flush();
    expect(steps().at(-1)).toEqual([3]);
  });

  it('flushes by time', async () => {
    const { logger, steps } = await logging({ flushAfterMs: 20 });
    logger.log('loss', 0, 1);
    await expect.poll(() => logger.waiting).toBe(0);
    logger.log('loss', 1, 1);
    await expect.poll(() => logger.waiting).toBe(0);
    expect(steps()).toEqual([[0], [1]]);
  });

  it('sends one call at a time, in order, and points logged meanwhile in the next', async () => {
    const first = Promise.withResolvers<void>();
    const { logger, steps } = await logging({ batchPoints: 1 }, [first.promise]);
    logger.log('loss', 0, 1);
    await expect.poll(steps).toEqual([[0]]);
    for (const step of [1, 2]) logger.log('loss', step, 1);
    first.resolve();
    await logger.flush();
    expect(steps()).toEqual([[0], [1, 2]]);
  });

  it('waits through transient errors, and sends the same points again', async () => {
    const { logger, steps } = await logging({}, [
      new ConnectError('cut', Code.Unavailable),
      refusal(Code.ResourceExhausted, 'STORAGE_FULL', {}, 1),
    ]);
    logger.log('loss', 0, 1);
    await logger.flush();
    expect(steps()).toEqual([[0], [0], [0]]);
  });

  it('never loses a point silently: flush, close and every later log report points that cannot be sent', async () => {
    const { logger } = await logging({ batchPoints: 2 }, [refusal(Code.NotFound, 'RUN_NOT_FOUND')]);
    logger.log('loss', 0, 1);
    logger.log('loss', 1, 1);
    expect(await logger.flush().catch(reasonOf)).toBe('RUN_NOT_FOUND');
    expect(logger.waiting).toBe(2);
    expect(() => logger.log('loss', 2, 1)).toThrow('RUN_NOT_FOUND');
    expect(await logger.close().catch(reasonOf)).toBe('RUN_NOT_FOUND');
  });

  it('gives up after the configured time, with an error that says so', async () => {
    const away = Array.from({ length: 20 }, () => new ConnectError('away', Code.Unavailable));
    const { logger } = await logging({ giveUpAfterMs: 50 }, away);
    logger.log('loss', 0, 1);
    await expect(logger.flush()).rejects.toThrow(/gave up.*away/);
  });

  it('fails when its signal is aborted', async () => {
    const abort = new AbortController();
    const { logger } = await logging({ signal: abort.signal }, [new Promise(() => undefined)]);
    logger.log('loss', 0, 1);
    const flushed = logger.flush();
    abort.abort(new Error('enough'));
    await expect(flushed).rejects.toThrow('enough');
  });

  it('splits a backlog into calls that the server accepts: 10,000 points, 1 MiB', async () => {
    const { logger, calls } = await logging({ batchPoints: Number.POSITIVE_INFINITY });
    const key = 'k'.repeat(256);
    for (let step = 0; step < 9_999; step += 1) logger.log(key, step, step);
    await logger.flush();
    for (let step = 0; step < 25_000; step += 1) logger.log('k', step, step);
    await logger.flush();
    expect(calls.reduce((sum, { points }) => sum + points.length, 0)).toBe(34_999);
    for (const { points } of calls) {
      expect(points.length).toBeLessThanOrEqual(10_000);
      expect(points.reduce((sum, point) => sum + point.key.length + 20, 0)).toBeLessThan(1024 * 1024);
    }
  });

  it.each([
    ['', 1, 'has 0 bytes'],
    ['é'.repeat(129), 1, 'has 258 bytes'],
    ['a\0b', 1, 'U+0000'],
    ['loss', 0.5, 'metricStep of "loss" is 0.5: expected a whole number'],
    ['loss', 2n ** 63n, 'expected a signed 64-bit integer'],
  ])('throws at log() for a point that every server would refuse: %j at %s', async (key, step, words) => {
    const { logger, steps } = await logging();
    logger.log('loss', 7, 1);
    expect(() => logger.log(key, step, 1)).toThrow(words);
    await logger.close();
    expect(steps()).toEqual([[7]]);
    expect(() => logger.log('loss', 8, 1)).toThrow('closed');
  });
});
