import { describe, expect, it } from 'vitest';
import { createDrain } from '../../src/stream/drain.ts';
import { refusalOf } from '../store/scene.ts';

describe('A2: a drain', () => {
  it('ends a wait as soon as it begins, and one that starts later at once', async () => {
    const drain = createDrain();
    const waiting = refusalOf(drain.race(new Promise(() => {})));
    drain.throwIfBegun();
    drain.begin();
    expect((await waiting).reason).toBe('SERVER_DRAINING');
    expect((await refusalOf(drain.race(new Promise(() => {})))).reason).toBe('SERVER_DRAINING');
    expect(() => drain.throwIfBegun()).toThrow('The server is shutting down.');
  });

  it('leaves the outcome of a promise that settles before', async () => {
    const drain = createDrain();
    expect(await drain.race(Promise.resolve('done'))).toBe('done');
    await expect(drain.race(Promise.reject(new Error('broken')))).rejects.toThrow('broken');
  });

  it('calls each listener once, unless it has unsubscribed', () => {
    const drain = createDrain();
    const calls: string[] = [];
    drain.onBegin(() => calls.push('stays'));
    drain.onBegin(() => calls.push('leaves'))();
    drain.begin();
    drain.begin();
    drain.onBegin(() => calls.push('late'));
    expect(calls).toEqual(['stays', 'late']);
  });
});
