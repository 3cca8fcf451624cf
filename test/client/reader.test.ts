import { Code, ConnectError } from '@connectrpc/connect';
import { describe, expect, it } from 'vitest';
import type { AnabranchClient } from '../../src/client/index.ts';
import { type ReadOptions, type ReadProgress, readSteps, reasonOf } from '../../src/client/index.ts';
import { connected } from './connected.ts';
import { type ReadAnswer, type ReadScript, refusal, TRAJECTORY } from './scripted-peer.ts';

const message = (from: number, to: number, more: ReadAnswer = {}): ReadAnswer => ({
  trajectoryId: TRAJECTORY,
  steps: Array.from({ length: to - from }, (_, i) => ({ stepNumber: BigInt(from + i) })),
  nextStepNumber: BigInt(to),
  ...more,
});

const saying = (answers: ReadAnswer[], error?: ConnectError): ReadScript =>
  async function* () {
    yield* answers;
    if (error !== undefined) throw error;
  };

const mute: ReadScript = async function* (_, context) {
  yield message(0, 1);
  await new Promise((resolve) => context.signal.addEventListener('abort', resolve));
};

async function numbers(client: AnabranchClient, more: Partial<ReadOptions> = {}): Promise<number[]> {
  const got: number[] = [];
  for await (const { step } of readSteps(client, { trajectoryId: TRAJECTORY, ...more }))
    got.push(Number(step.stepNumber));
  return got;
}

describe('readSteps', () => {
  it('requests the given range and yields each step with its owner', async () => {
    const { client, peer } = await connected({
      read: [saying([message(3, 5), { ...message(5, 6), trajectoryId: 'b' }])],
    });
    const got: string[] = [];
    const range = { startStepNumber: 3n, endStepNumber: 6n };
    for await (const { trajectoryId, step } of readSteps(client, { trajectoryId: TRAJECTORY, ...range })) {
      got.push(`${trajectoryId} ${step.stepNumber}`);
    }
    expect(got).toEqual([`${TRAJECTORY} 3`, `${TRAJECTORY} 4`, 'b 5']);
    expect(peer.reads[0]).toMatchObject({ ...range, follow: false });
  });

  it.each([
    ['a lost connection', new ConnectError('x', Code.Unavailable)],
    ['a draining server', refusal(Code.Unavailable, 'SERVER_DRAINING', {}, 1)],
    ['the end of a slow reader (R3)', refusal(Code.ResourceExhausted, 'SLOW_READER', { next_step_number: '2' }, 1)],
  ])('R2: after %s it continues at the next step: each once, in order', async (_, error) => {
    const read = [
      saying([message(0, 2)], error),
      saying([message(2, 4)], error),
      saying([message(4, 5, { sealed: true })]),
    ];
    const { client, peer } = await connected({ read });
    expect(await numbers(client, { follow: true })).toEqual([0, 1, 2, 3, 4]);
    expect(peer.reads.map((request) => request.startStepNumber)).toEqual([0n, 2n, 4n]);
  });

  it('O1: a step that is not the next one is an error, never a gap or a duplicate', async () => {
    const { client } = await connected({ read: [saying([message(0, 2), message(3, 4)]), saying([message(1, 2)])] });
    await expect(numbers(client)).rejects.toThrow('the server sent step 3: expected step 2');
    await expect(numbers(client)).rejects.toThrow('the server sent step 1: expected step 0');
  });

  it('RD1: a deleted trajectory is an error, never a short success', async () => {
    const deleted = refusal(Code.Aborted, 'TRAJECTORY_DELETED', { trajectory_id: TRAJECTORY });
    const { client, peer } = await connected({ read: [saying([message(0, 2)], deleted)] });
    expect(await numbers(client).catch(reasonOf)).toBe('TRAJECTORY_DELETED');
    expect(peer.reads).toHaveLength(1);
  });

  it('RD2: reports when it is caught up, and when the trajectory is sealed', async () => {
    const { client } = await connected({
      read: [
        saying([message(0, 2), message(2, 2, { caughtUp: true }), message(2, 3), message(3, 3, { sealed: true })]),
      ],
    });
    const progress: ReadProgress[] = [];
    await numbers(client, { follow: true, onProgress: (p) => progress.push(p) });
    expect(progress.map((p) => [Number(p.nextStepNumber), p.caughtUp, p.sealed])).toEqual([
      [2, false, false],
      [2, true, false],
      [3, false, false],
      [3, false, true],
    ]);
  });

  it('reconnects when the server is silent for too long', async () => {
    const { client, peer } = await connected({ read: [mute, saying([message(1, 2, { sealed: true })])] });
    expect(await numbers(client, { follow: true, silenceMs: 500 })).toEqual([0, 1]);
    expect(peer.reads).toHaveLength(2);
  });

  it('does not count the caller’s processing time as silence of the server', async () => {
    const { client, peer } = await connected({ read: [saying([message(0, 1), message(1, 2, { sealed: true })])] });
    const steps = readSteps(client, { trajectoryId: TRAJECTORY, follow: true, silenceMs: 500 });
    const first = await steps.next();
    await new Promise((resolve) => setTimeout(resolve, 1000));
    const second = await steps.next();
    expect([first.value?.step.stepNumber, second.value?.step.stepNumber]).toEqual([0n, 1n]);
    expect((await steps.next()).done).toBe(true);
    expect(peer.reads).toHaveLength(1);
  });

  it('cancels the call on the server when the caller leaves the loop', async () => {
    const ended = Promise.withResolvers<void>();
    const { client } = await connected({
      read: [
        async function* (request, context) {
          context.signal.addEventListener('abort', () => ended.resolve());
          yield* mute(request, context);
        },
      ],
    });
    for await (const _ of readSteps(client, { trajectoryId: TRAJECTORY, follow: true })) break;
    await ended.promise;
  });

  it('cancelled calls free their streams: three times as many as one connection allows, one after the other', async () => {
    const { client, peer } = await connected({ read: Array.from({ length: 300 }, () => mute) });
    for (let i = 0; i < 300; i += 1) {
      for await (const _ of readSteps(client, { trajectoryId: TRAJECTORY, follow: true })) break;
    }
    expect(peer.connections).toBe(1);
  });

  it('throws the reason when its signal is aborted', async () => {
    const { client } = await connected({ read: [mute] });
    const abort = new AbortController();
    const reading = async () => {
      for await (const _ of readSteps(client, { trajectoryId: TRAJECTORY, follow: true, signal: abort.signal })) {
        queueMicrotask(() => abort.abort(new Error('enough')));
      }
    };
    await expect(reading()).rejects.toThrow('enough');
  });

  it('gives up when nothing arrives for too long, with the cause', async () => {
    const read = Array.from({ length: 10 }, () =>
      saying([], refusal(Code.Unavailable, 'DATABASE_UNAVAILABLE', {}, 50)),
    );
    const { client } = await connected({ read });
    await expect(numbers(client, { giveUpAfterMs: 150 })).rejects.toThrow(/last error: .*DATABASE_UNAVAILABLE/);
  });
});
