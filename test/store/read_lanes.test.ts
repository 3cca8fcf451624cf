import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import type { CallScope } from '../../src/store/contract/store.ts';
import { ReadLanes } from '../../src/store/sql/kit/reading/lanes.ts';

const QUICK_MS = 50;

/** Lanes, and the order in which reads started. */
class Scene {
  readonly lanes: ReadLanes;
  readonly begun: string[] = [];
  readonly #ends = new Map<string, (milliseconds: number) => void>();
  readonly #fails = new Map<string, (error: Error) => void>();

  constructor(long: number, quick: number, quickMs = QUICK_MS, restFor?: (milliseconds: number) => number) {
    this.lanes = new ReadLanes({ long, quick, quickMs, ...(restFor === undefined ? {} : { restFor }) });
  }

  /** Requests a read, which runs until the test ends it. */
  ask(name: string, kind = name, call?: CallScope): Promise<string> {
    return this.lanes.run(kind, call, () => {
      this.begun.push(name);
      return new Promise((resolve, reject) => {
        this.#ends.set(name, (milliseconds) => resolve({ value: name, milliseconds }));
        this.#fails.set(name, reject);
      });
    });
  }

  /** Ends a read with this duration. Resolves when the waiting reads have started. */
  async end(name: string, milliseconds: number): Promise<void> {
    this.#ends.get(name)?.(milliseconds);
    await nextIteration();
  }

  async fail(name: string, error: Error): Promise<void> {
    this.#fails.get(name)?.(error);
    await nextIteration();
  }

  /** Makes kinds known as quick by running quick reads. */
  async learn(...kinds: string[]): Promise<void> {
    for (const kind of kinds) {
      const read = this.ask(`first ${kind}`, kind);
      await this.end(`first ${kind}`, 1);
      await read;
    }
    this.begun.length = 0;
  }
}

function nextIteration(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

describe('A5: lanes of reads', () => {
  // On a busy machine a read that is quick here could otherwise take long.
  beforeEach(() => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] });
  });
  afterEach(() => {
    vi.useRealTimers();
  });

  it('stay empty for the configured time after a long read, and not after a quick one', async () => {
    const scene = new Scene(1, 1, QUICK_MS, (milliseconds) => milliseconds / 2);
    const reads = ['a', 'b', 'c'].map((name) => scene.ask(name, 'list'));
    await scene.end('a', 2 * QUICK_MS);
    await vi.advanceTimersByTimeAsync(QUICK_MS - 1);
    expect(scene.begun).toEqual(['a']);
    await vi.advanceTimersByTimeAsync(1);
    expect(scene.begun).toEqual(['a', 'b']);
    await scene.end('b', QUICK_MS);
    expect(scene.begun).toEqual(['a', 'b', 'c']);
    await scene.end('c', 1);
    await Promise.all(reads);
  });

  it('rest after several reads that together take as long as a long one, but never after short reads', async () => {
    const rests: number[] = [];
    const scene = new Scene(1, 0, QUICK_MS, (milliseconds) => {
      rests.push(milliseconds);
      return milliseconds;
    });
    const run = async (milliseconds: number) => {
      const read = scene.ask('read', 'list');
      await scene.end('read', milliseconds);
      await read;
    };
    for (let i = 0; i < 100; i += 1) await run(5);
    expect(rests).toEqual([]);
    for (let i = 0; i < 3; i += 1) await run(20);
    expect(rests).toEqual([60]);
    const next = scene.ask('next', 'list');
    await vi.advanceTimersByTimeAsync(59);
    expect(scene.begun).not.toContain('next');
    await vi.advanceTimersByTimeAsync(1);
    expect(scene.begun).toContain('next');
    await scene.end('next', 1);
    await next;
  });

  it('rest for longer while other lanes are busy, so that many reads take no more of the processors than one', async () => {
    const rests: number[] = [];
    const scene = new Scene(3, 0, QUICK_MS, (milliseconds) => {
      rests.push(milliseconds);
      return 0;
    });
    const reads = ['a', 'b', 'c'].map((name) => scene.ask(name, 'list'));
    for (const name of ['a', 'b', 'c']) await scene.end(name, 60);
    await Promise.all(reads);
    expect(rests).toEqual([180, 120, 60]);
  });

  it('reserve a lane for quick kinds of reads: other kinds never run there', async () => {
    const scene = new Scene(1, 1);
    await scene.learn('row');
    const reads = ['a', 'b'].map((name) => scene.ask(name, 'list'));
    const row = scene.ask('row');
    expect(scene.begun).toEqual(['a', 'row']);
    await scene.end('row', 1);
    expect(await row).toBe('row');
    await scene.end('a', 1000);
    await scene.end('b', 1000);
    expect(await Promise.all(reads)).toEqual(['a', 'b']);
  });

  it('run the read that has waited longest', async () => {
    const scene = new Scene(2, 0);
    const reads = ['a', 'b', 'c', 'd'].map((name) => scene.ask(name));
    for (const name of ['b', 'a', 'd', 'c']) await scene.end(name, 100);
    await Promise.all(reads);
    expect(scene.begun).toEqual(['a', 'b', 'c', 'd']);
  });

  it('keep a kind that turned out to be slow out of the quick lane, even if its reads were quick when they arrived', async () => {
    const scene = new Scene(1, 1);
    await scene.learn('list', 'row');
    const lists = ['a', 'b', 'c', 'd'].map((name) => scene.ask(name, 'list'));
    const row = scene.ask('row');
    expect(scene.begun).toEqual(['a', 'b']);
    await scene.end('a', 1000);
    expect(scene.begun).toEqual(['a', 'b', 'row']);
    for (const name of ['row', 'b', 'c', 'd']) await scene.end(name, 1000);
    await Promise.all([...lists, row]);
  });

  it('treat a kind as slow for a while after one of its reads is quick again', async () => {
    const scene = new Scene(1, 1);
    const slow = scene.ask('a', 'list');
    await scene.end('a', 60_000);
    const quick = scene.ask('b', 'list');
    await scene.end('b', 1);
    await Promise.all([slow, quick]);
    const lists = ['c', 'd'].map((name) => scene.ask(name, 'list'));
    expect(scene.begun).toEqual(['a', 'b', 'c']);
    await scene.end('c', 1);
    await scene.end('d', 1);
    await Promise.all(lists);
  });

  it('count reads that fail after a long time as slow', async () => {
    const scene = new Scene(1, 1);
    const first = scene.ask('a', 'list').catch((error: Error) => error.message);
    vi.advanceTimersByTime(QUICK_MS + 1);
    await scene.fail('a', new Error('the deadline has passed'));
    expect(await first).toBe('the deadline has passed');
    const lists = ['b', 'c'].map((name) => scene.ask(name, 'list'));
    expect(scene.begun).toEqual(['a', 'b']);
    await scene.end('b', 1);
    await scene.end('c', 1);
    await Promise.all(lists);
  });

  it('remember the most recently used kinds, up to a bound', async () => {
    const scene = new Scene(1, 1);
    await scene.learn('row');
    for (let i = 0; i < 6000; i += 1) {
      await scene.lanes.run(`statement ${i}`, undefined, async () => ({ value: i, milliseconds: 1 }));
      if (i % 100 === 0) await scene.lanes.run('row', undefined, async () => ({ value: i, milliseconds: 1 }));
    }
    await nextIteration();
    const list = scene.ask('list');
    const row = scene.ask('row');
    expect(scene.begun).toEqual(['list', 'row']);
    await scene.end('list', 1);
    await scene.end('row', 1);
    await Promise.all([list, row]);
  });

  it('reject a waiting read with the reason of its cancellation, and never start it', async () => {
    const scene = new Scene(1, 0);
    const controller = new AbortController();
    const running = scene.ask('a');
    const leaving = scene.ask('b', 'b', controller).catch((error: unknown) => error);
    const staying = scene.ask('c');
    controller.abort('left');
    expect(await leaving).toBe('left');
    await scene.end('a', 1);
    await scene.end('c', 1);
    expect(await Promise.all([running, staying])).toEqual(['a', 'c']);
    expect(scene.begun).toEqual(['a', 'c']);
  });

  it('MS5: start reads of several namespaces in turn', async () => {
    const all = new Scene(1, 0);
    const of = (namespace: string) => ({ signal: new AbortController().signal, namespace });
    const names = ['many 1', 'many 2', 'many 3', 'one 1', 'one 2'];
    const reads = names.map((name) => all.ask(name, 'row', of(name.slice(0, -2))));
    for (const name of ['many 1', 'many 2', 'one 1', 'many 3', 'one 2']) await all.end(name, 1);
    await Promise.all(reads);
    expect(all.begun).toEqual(['many 1', 'many 2', 'one 1', 'many 3', 'one 2']);
  });

  it('A1: reject all waiting reads when the database becomes unavailable', async () => {
    const scene = new Scene(1, 1);
    const running = scene.ask('a');
    const waiting = ['b', 'c'].map((name) => scene.ask(name).catch((error: Error) => error.message));
    scene.lanes.rejectWaiting(new Error('the database is silent'));
    expect(await Promise.all(waiting)).toEqual(['the database is silent', 'the database is silent']);
    await scene.end('a', 1);
    expect(await running).toBe('a');
  });

  it('after close, start no read and no pause', async () => {
    const scene = new Scene(1, 0);
    const running = scene.ask('a');
    const waiting = scene.ask('b').catch((error: Error) => error.message);
    let paused = false;
    void scene.lanes.pause().then(() => {
      paused = true;
    });
    scene.lanes.close(new Error('closed'));
    expect(await waiting).toBe('closed');
    await scene.end('a', 1);
    expect(await running).toBe('a');
    await expect(scene.ask('c')).rejects.toThrow('closed');
    expect(paused).toBe(false);
  });
});
