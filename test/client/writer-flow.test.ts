import { createHash } from 'node:crypto';
import { Code, ConnectError } from '@connectrpc/connect';
import { describe, expect, it } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import type { AppendStepsRequest } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { openWriter, reasonOf, type WriterEvent } from '../../src/client/index.ts';
import { connected } from './connected.ts';
import { type AppendScript, ack, obliging, opened, refusal, type Scripts, TRAJECTORY } from './scripted-peer.ts';

const step = (n: number) => ({ reward: n });
const rewards = (frames: AppendStepsRequest[]) => frames.map((frame) => frame.steps.map((each) => each.reward));
const sha256 = (bytes: Uint8Array) => createHash('sha256').update(bytes).digest('hex');

describe('frames', () => {
  it('a step is copied when it is appended: later changes by the caller have no effect', async () => {
    const seen: AppendStepsRequest[] = [];
    const { client } = await connected({ append: [obliging(1n, 0n, seen)] });
    const writer = await openWriter(client, { trajectoryId: TRAJECTORY });
    const env = Buffer.from('before');
    const observations = [{ type: 'text', content: { text: 'before' } }];
    const appended = writer.append({ observations, states: { env } });
    env.fill('x');
    observations[0] = { type: 'text', content: { text: 'after' } };
    await appended;
    expect(Buffer.from(seen[0]?.steps[0]?.states[0]?.data ?? []).toString()).toBe('before');
    expect(seen[0]?.steps[0]?.observations[0]?.content?.text).toBe('before');
    await writer.close();
  });

  it('at most maxUnackedSteps are unacked, and ready() waits for room', async () => {
    const acks = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const most: number[] = [];
    const script: AppendScript = async function* ({ next }) {
      yield opened(1n, 0n);
      let end = 0n;
      for (const go of acks) {
        const from = end;
        while (end - from < 2n) end += BigInt((await next())?.steps.length ?? 2);
        await go.promise;
        most.push(Number(end - from));
        yield ack(end);
      }
      await next();
    };
    const { client } = await connected({ append: [script] });
    const writer = await openWriter(client, { trajectoryId: TRAJECTORY, maxUnackedSteps: 2 });
    const all = [1, 2, 3, 4].map((n) => writer.append(step(n)));
    let room = false;
    const ready = writer.ready().then(() => {
      room = true;
    });
    acks[0]?.resolve();
    await all[1];
    // Two steps more were appended than the window allows: still no room.
    await Promise.resolve();
    expect(room).toBe(false);
    acks[1]?.resolve();
    await ready;
    expect(most).toEqual([2, 2]);
    await Promise.all(all);
    await writer.ready();
    await writer.close();
  });

  it('an invalid setting is refused by name', async () => {
    const { client } = await connected({});
    const opening = openWriter(client, { trajectoryId: TRAJECTORY, maxUnackedSteps: 0 });
    await expect(opening).rejects.toThrow('maxUnackedSteps is 0: expected a number above 0');
  });
});

describe('states', () => {
  /** Accepts states unless they are stored, and records the order of events. */
  function keeping(log: string[], failures: ConnectError[] = []): NonNullable<Scripts['states']> {
    const here = new Map<string, number>();
    return {
      hasStates: ({ digests }) => ({
        states: digests.filter((digest) => here.has(digest)).map((digest) => ({ digest, size: 0n })),
      }),
      async putState(chunks) {
        const failure = failures.shift();
        if (failure !== undefined) throw failure;
        const parts: Uint8Array[] = [];
        let digest = '';
        for await (const part of chunks) {
          digest ||= part.digest;
          parts.push(part.chunk);
        }
        const bytes = Buffer.concat(parts);
        log.push(`put ${bytes.byteLength} in ${parts.length}: ${sha256(bytes) === digest ? 'right' : 'wrong'} digest`);
        here.set(digest, bytes.byteLength);
        return { state: { digest, size: BigInt(bytes.byteLength) } };
      },
    };
  }

  const logging = (log: string[], seen: AppendStepsRequest[]): AppendScript =>
    async function* ({ next }) {
      yield opened(1n, 0n);
      for (let frame = await next(); frame !== undefined; frame = await next()) {
        seen.push(frame);
        for (const each of frame.steps) log.push(`step ${each.stepNumber}`);
        yield ack((frame.steps.at(-1)?.stepNumber ?? 0n) + 1n);
      }
    };

  it('W9: a state over 512 KiB is uploaded before its step, in chunks, once; later steps wait', async () => {
    const log: string[] = [];
    const seen: AppendStepsRequest[] = [];
    const { client } = await connected({ append: [logging(log, seen)], states: keeping(log) });
    const writer = await openWriter(client, { trajectoryId: TRAJECTORY });
    const large = new Uint8Array(600 * 1024).fill(7);
    const picture = new Uint8Array(700 * 1024).fill(8);
    const digests = [sha256(large), sha256(picture)];
    const first = writer.append({ states: { env: { data: large, mediaType: 'application/x-env' } } });
    large.fill(0);
    const second = writer.append(step(1));
    const content = { data: picture, mediaType: 'image/png' };
    const third = writer.append({
      observations: [{ type: 'screenshot', content }],
      states: { env: new Uint8Array(600 * 1024).fill(7), agent: new Uint8Array(512 * 1024) },
    });
    await Promise.all([first, second, third]);
    expect(log).toEqual([
      'put 614400 in 3: right digest',
      'step 0',
      'step 1',
      'put 716800 in 3: right digest',
      'step 2',
    ]);
    const [one, , three] = seen.flatMap((frame) => frame.steps);
    expect(one?.states[0]).toMatchObject({ name: 'env', digest: digests[0], mediaType: 'application/x-env' });
    expect(one?.states[0]?.data).toBeUndefined();
    expect(three?.observations[0]?.content).toMatchObject({ stateDigest: digests[1], mediaType: 'image/png' });
    expect(three?.states.map((state) => state.data?.byteLength)).toEqual([undefined, 512 * 1024]);
    expect(content.data).toBe(picture);
    await writer.close();
  });

  it('an upload is retried after a cut, and its final failure fails the writer', async () => {
    const log: string[] = [];
    const failures = [new ConnectError('x', Code.Unavailable)];
    const { client } = await connected({ append: [logging(log, [])], states: keeping(log, failures) });
    const writer = await openWriter(client, { trajectoryId: TRAJECTORY });
    await writer.append({ states: { env: new Uint8Array(600 * 1024) } });
    expect(log.at(-1)).toBe('step 0');
    failures.push(refusal(Code.InvalidArgument, 'DIGEST_MISMATCH'));
    expect(await writer.append({ states: { env: new Uint8Array(600 * 1024).fill(1) } }).catch(reasonOf)).toBe(
      'DIGEST_MISMATCH',
    );
    expect(await writer.close().catch(reasonOf)).toBe('DIGEST_MISMATCH');
  });

  it('a step that is still too large is refused alone, takes no number, and the error says what to do', async () => {
    const { client } = await connected({ append: [obliging(1n, 0n)] });
    const writer = await openWriter(client, { trajectoryId: TRAJECTORY });
    const text = 'x'.repeat(1024 * 1024);
    const error = await writer.append({ observations: [{ content: { text } }] }).catch((e: unknown) => e);
    expect(reasonOf(error)).toBe('MESSAGE_TOO_LARGE');
    expect(String(error)).toMatch(/step 0 has \d+ bytes when encoded: expected at most 1044480; move large text/);
    expect((await writer.append(step(1))).stepNumber).toBe(0n);
    await writer.close();
  });
});

describe('the end', () => {
  it('W5: the seal is sent with the last steps; nothing is accepted after it', async () => {
    const seen: AppendStepsRequest[] = [];
    const { client } = await connected({ append: [obliging(1n, 0n, seen)] });
    const writer = await openWriter(client, { trajectoryId: TRAJECTORY });
    const last = writer.append(step(1));
    const sealed = await writer.seal(Status.COMPLETED, 'done');
    expect(sealed).toEqual({ status: Status.COMPLETED, message: 'done', nextStepNumber: 1n, sealTime: undefined });
    expect(await last).toMatchObject({ stepNumber: 0n });
    expect(seen).toHaveLength(1);
    await expect(writer.append(step(2))).rejects.toThrow('this writer has sealed its trajectory');
    await writer.close();
  });

  it('W5: a seal whose answer was lost is replayed with the unacked steps', async () => {
    const seen: AppendStepsRequest[] = [];
    const lost: AppendScript = async function* ({ next }) {
      yield opened(1n, 0n);
      await next();
      throw new ConnectError('cut', Code.Unavailable);
    };
    const { client } = await connected({ append: [lost, obliging(2n, 1n, seen)] });
    const writer = await openWriter(client, { trajectoryId: TRAJECTORY });
    const last = writer.append(step(1));
    expect((await writer.seal(Status.FAILED)).nextStepNumber).toBe(1n);
    expect(await last).toMatchObject({ stepNumber: 0n });
    expect(seen).toHaveLength(1);
    expect(seen[0]?.seal?.status).toBe(Status.FAILED);
    await writer.close();
  });

  it('close() flushes steps that were not awaited, half-closes, and may be called twice', async () => {
    const seen: AppendStepsRequest[] = [];
    const ended = Promise.withResolvers<void>();
    const { client } = await connected({
      append: [
        async function* (stream) {
          yield* obliging(1n, 0n, seen)(stream);
          ended.resolve();
        },
      ],
    });
    const writer = await openWriter(client, { trajectoryId: TRAJECTORY });
    for (const n of [1, 2, 3]) void writer.append(step(n));
    await writer.close();
    await writer.close();
    await ended.promise;
    expect(rewards(seen).flat()).toEqual([1, 2, 3]);
    await expect(writer.append(step(4))).rejects.toThrow('this writer is closed');
  });

  it('a writer without listeners fails without ending the process, and close() rejects', async () => {
    const { client } = await connected({
      append: [
        async function* ({ next }) {
          yield opened(1n, 0n);
          await next();
          throw refusal(Code.FailedPrecondition, 'TRAJECTORY_SEALED', { status: 'COMPLETED', next_step_number: '0' });
        },
      ],
    });
    const events: WriterEvent[] = [];
    const failed = Promise.withResolvers<void>();
    const onEvent = (event: WriterEvent) => {
      events.push(event);
      if (event.type === 'failed') failed.resolve();
    };
    const writer = await openWriter(client, { trajectoryId: TRAJECTORY, onEvent });
    void writer.append(step(1));
    await failed.promise;
    void writer.append(step(2));
    expect(await writer.close().catch(reasonOf)).toBe('TRAJECTORY_SEALED');
    expect(events.map((event) => event.type)).toEqual(['opened', 'failed']);
  });

  it('fails at once when its signal is aborted', async () => {
    const abort = new AbortController();
    const mute: AppendScript = async function* ({ next, context }) {
      yield opened(1n, 0n);
      await next();
      abort.abort(new Error('enough'));
      await new Promise((resolve) => context.signal.addEventListener('abort', resolve));
    };
    const { client } = await connected({ append: [mute] });
    const writer = await openWriter(client, { trajectoryId: TRAJECTORY, signal: abort.signal });
    await expect(writer.append(step(1))).rejects.toThrow('enough');
    await expect(writer.close()).rejects.toThrow('enough');
  });

  it('closing the client ends a writer with unacked steps permanently', async () => {
    const got = Promise.withResolvers<void>();
    const mute: AppendScript = async function* ({ next, context }) {
      yield opened(1n, 0n);
      await next();
      got.resolve();
      await new Promise((resolve) => context.signal.addEventListener('abort', resolve));
    };
    const { client, peer } = await connected({ append: [mute, obliging(2n, 0n)] });
    const writer = await openWriter(client, { trajectoryId: TRAJECTORY });
    const appended = writer.append(step(1));
    await got.promise;
    client.close();
    await expect(appended).rejects.toThrow('this client is closed');
    expect(peer.opens).toHaveLength(1);
  });

  it('refused streams are freed: three times as many as one connection allows, one after the other', async () => {
    const refusing: AppendScript = async function* ({ next }) {
      yield opened(1n, 0n);
      await next();
      throw refusal(Code.FailedPrecondition, 'TRAJECTORY_SEALED', { status: 'COMPLETED', next_step_number: '0' });
    };
    const { client, peer } = await connected({ append: Array.from({ length: 300 }, () => refusing) });
    for (let i = 0; i < 300; i += 1) {
      const writer = await openWriter(client, { trajectoryId: TRAJECTORY });
      expect(await writer.append(step(1)).catch(reasonOf)).toBe('TRAJECTORY_SEALED');
    }
    expect(peer.connections).toBe(1);
  });

  it('more writers than one connection allows use two connections, and free their streams when they end', async () => {
    const scripts = Array.from({ length: 190 }, () => obliging(1n, 0n));
    const { client, peer } = await connected({ append: scripts });
    const open = (count: number) =>
      Promise.all(Array.from({ length: count }, () => openWriter(client, { trajectoryId: TRAJECTORY })));
    const writers = await open(95);
    expect(peer.connections).toBe(2);
    await Promise.all(writers.map((writer) => writer.append(step(1))));
    await Promise.all(writers.map((writer) => writer.close()));
    const more = await open(95);
    expect(peer.connections).toBe(2);
    await Promise.all(more.map((writer) => writer.close()));
  });
});
