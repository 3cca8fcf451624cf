import { afterEach, describe, expect, it, vi } from 'vitest';
import { Silence } from '../../src/client/silence.ts';

afterEach(() => void vi.unstubAllGlobals());

describe('Silence', () => {
  it('C2: reports silence if timers are numbers and setImmediate is missing, as in a browser', async () => {
    vi.stubGlobal('setImmediate', undefined);
    const { setTimeout: start, clearTimeout: stop } = globalThis;
    const timers = new Map<number, NodeJS.Timeout>();
    vi.stubGlobal('setTimeout', (work: () => void, ms?: number) => {
      timers.set(timers.size + 1, start(work, ms));
      return timers.size;
    });
    vi.stubGlobal('clearTimeout', (id: number) => stop(timers.get(id)));
    const error = await new Promise<Error>((resolve) => new Silence(200, resolve).expect());
    expect(error.message).toContain('the server sent nothing for 0.2 s');
  });
});
