import { afterEach, describe, expect, it } from 'vitest';
import { LIMITS } from '../../src/domain/limits.ts';
import { PatchQueue, type StatePair } from '../../src/stream/patches/patch_queue.ts';

const NEVER = 3_600_000;
const PATCH = { patchJson: '[{"op":"replace","path":"","value":2}]' };
/** Elements of the lists that take long. */
const HARD = 50_000;
const alive = new AbortController().signal;

const queues: PatchQueue[] = [];
afterEach(async () => {
  await Promise.all(queues.splice(0).map((queue) => queue.close()));
});

function newQueue(patchMs = NEVER): PatchQueue {
  const queue = new PatchQueue(patchMs);
  queues.push(queue);
  return queue;
}

function shared(text: string): SharedArrayBuffer {
  const bytes = new TextEncoder().encode(text);
  const buffer = new SharedArrayBuffer(bytes.length);
  new Uint8Array(buffer).set(bytes);
  return buffer;
}

function pair(one: string, other: string): () => Promise<StatePair> {
  return async () => [shared(one), shared(other)];
}

/** Takes the thread about a tenth of a second. */
async function hard(): Promise<StatePair> {
  const list = JSON.stringify(Array.from({ length: HARD }, () => ({ a: 1 }))).slice(0, -1);
  return [shared(`${list}]`), shared(`${list},2]`)];
}

describe('PatchQueue', () => {
  it('S7: makes patches on a thread of its own, and the event loop turns meanwhile', async () => {
    const queue = newQueue();
    let turns = 0;
    const turning = setInterval(() => {
      turns += 1;
    }, 0);
    const patch = await queue.patch(hard, alive);
    clearInterval(turning);
    expect(patch).toEqual({ patchJson: `[{"op":"add","path":"/${HARD}","value":2}]` });
    expect(turns).toBeGreaterThan(5);
    expect(await queue.patch(pair('1', '2'), alive)).toEqual(PATCH);
  });

  it('S7: loads the states of one call at a time, in order, and refuses a call if too many wait', async () => {
    const queue = newQueue();
    const gate = Promise.withResolvers<void>();
    const loaded: number[] = [];
    const load = (call: number) => async () => {
      loaded.push(call);
      await gate.promise;
      return pair('1', '2')();
    };
    const calls = Array.from({ length: LIMITS.waitingPatches + 1 }, (_, call) => queue.patch(load(call), alive));
    expect(await queue.patch(load(-1), alive)).toEqual({ noPatch: 'BUSY' });
    expect(loaded).toEqual([0]);
    gate.resolve();
    expect(await Promise.all(calls)).toEqual(calls.map(() => PATCH));
    expect(loaded).toEqual(calls.map((_, call) => call));
    expect(await queue.patch(pair('1', '2'), alive)).toEqual(PATCH);
  });

  it('S7: a call that ends while it waits leaves its place to others', async () => {
    const queue = newQueue();
    const gate = Promise.withResolvers<StatePair>();
    const first = queue.patch(() => gate.promise, alive);
    const leaving = new AbortController();
    const reason = new Error('the caller has left');
    const waiting = Array.from({ length: LIMITS.waitingPatches }, () => queue.patch(hard, leaving.signal));
    leaving.abort(reason);
    for (const call of waiting) await expect(call).rejects.toBe(reason);
    const next = queue.patch(pair('1', '2'), alive);
    gate.resolve(await pair('1', '2')());
    expect(await Promise.all([first, next])).toEqual([PATCH, PATCH]);
    await expect(queue.patch(pair('1', '2'), leaving.signal)).rejects.toBe(reason);
  });

  it('S7: a call that ends while its patch is made ends the thread, and the next one has another', async () => {
    const queue = newQueue();
    const leaving = new AbortController();
    const reason = new Error('the caller has left');
    const load = async () => {
      setImmediate(() => leaving.abort(reason));
      return hard();
    };
    await expect(queue.patch(load, leaving.signal)).rejects.toBe(reason);
    expect(await queue.patch(pair('1', '2'), alive)).toEqual(PATCH);
  });

  it('S7: a patch that takes too long is given up', async () => {
    expect(await newQueue(1).patch(hard, alive)).toEqual({ noPatch: 'TOO_COMPLEX' });
  });

  it('S7: states that cannot be loaded fail their own call only', async () => {
    const queue = newQueue();
    const fault = new Error('damaged');
    await expect(queue.patch(() => Promise.reject(fault), alive)).rejects.toBe(fault);
    expect(await queue.patch(pair('1', '2'), alive)).toEqual(PATCH);
  });

  it('A2: closing ends the running patch with SERVER_DRAINING, and all that wait', async () => {
    const queue = newQueue();
    const running = [queue.patch(hard, alive), queue.patch(hard, alive)];
    const ended = Promise.allSettled(running);
    await queue.close();
    for (const result of await ended) {
      expect(result).toMatchObject({ status: 'rejected', reason: { reason: 'SERVER_DRAINING' } });
    }
  });

  it('S7: the most complex documents within the limits do not exhaust the memory of the thread', async () => {
    const queue = newQueue();
    const objects = (last: string) => `[${'{},'.repeat(LIMITS.patchValues / 2 - 2)}${last}]`;
    expect(await queue.patch(pair(objects('1'), objects('2')), alive)).toEqual({
      patchJson: `[{"op":"replace","path":"/${LIMITS.patchValues / 2 - 2}","value":2}]`,
    });
    const deep = (value: string) => `${'{"a":['.repeat(500)}${value}${']}'.repeat(500)}`;
    expect(await queue.patch(pair(deep('1'), deep('2')), alive)).toHaveProperty('patchJson');
  });
});
