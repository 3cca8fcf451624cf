import { setTimeout as wait } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { type Hint, runHint, trajectoryHint } from '../../src/domain/change.ts';
import type { AwaitedRows, ChangedRows, ChangeStore } from '../../src/store/contract/change.ts';
import { ChangeHub, TICKS_BETWEEN_POLLS } from '../../src/stream/change_hub.ts';

/** Milliseconds that no test lasts. Tests cause ticks by `poll`. */
const NEVER = 3_600_000;

/** The changes of a store, which a test controls. */
class ScriptedChanges implements ChangeStore {
  hearsOthers = true;
  readonly polls: AwaitedRows[] = [];
  answer: () => Promise<Partial<ChangedRows>> = async () => ({});
  #listener: (hint: Hint | undefined) => void = () => undefined;

  onChange(listener: (hint: Hint | undefined) => void): () => void {
    this.#listener = listener;
    return () => undefined;
  }

  hint(hint: Hint | undefined): void {
    this.#listener(hint);
  }

  async findChanges(awaited: AwaitedRows): Promise<ChangedRows> {
    this.polls.push(awaited);
    const horizon = { next: BigInt(this.polls.length), open: [], era: 'a' };
    return { trajectories: [], runs: [], queues: [], horizon, ...(await this.answer()) };
  }
}

describe('who waits for what on an instance', () => {
  const ref = (key: bigint) => ({ tree: 1n, key });

  function hub(pollMs = NEVER) {
    const store = new ScriptedChanges();
    const changes = new ChangeHub(store, { pollMs });
    const told: string[] = [];
    const tell = (name: string) => () => void told.push(name);
    return { store, changes, told, tell, [Symbol.dispose]: () => changes.close() };
  }

  it('RD2: a hint wakes those who wait for what it names, and nobody else', () => {
    using it = hub();
    const { changes, store, told, tell } = it;
    changes.onTrajectory(ref(1n), () => 0n, tell('trajectory 1'));
    changes.onTrajectory(ref(2n), () => 0n, tell('trajectory 2'));
    changes.onRun(1n, tell('run 1'));
    changes.onQueue('a', tell('queue'));
    store.hint(trajectoryHint(1n));
    expect(told.splice(0)).toEqual(['trajectory 1']);
    store.hint(runHint(1n));
    expect(told.splice(0)).toEqual(['run 1', 'queue']);
    store.hint(trajectoryHint(3n));
    expect(told).toEqual([]);
    expect(store.polls).toEqual([]);
  });

  it('RD2: those whose wait ends at a tick are polled for at this tick', async () => {
    using it = hub(5);
    const { changes, store, tell } = it;
    store.hearsOthers = false;
    let isWaiting = true;
    changes.onTick(() => {
      isWaiting = false;
    });
    changes.onTrajectory(ref(1n), () => (isWaiting ? 0n : undefined), tell('trajectory 1'));
    await expect.poll(() => isWaiting).toBe(false);
    expect(store.polls).toHaveLength(1);
  });

  it('RD2: one poll asks for all who wait, and wakes those whose rows have changed', async () => {
    using it = hub();
    const { changes, store, told, tell } = it;
    for (let key = 1n; key <= 1000n; key += 1n) changes.onTrajectory(ref(key), () => key, tell(`trajectory ${key}`));
    changes.onTrajectory(ref(2000n), () => undefined, tell('nobody'));
    for (let i = 0; i < 256; i += 1) changes.onQueue('a', tell('queue'));
    changes.onWatchedRun(7n, tell('run 7'));
    changes.onRun(8n, tell('run 8'));
    const runs = [7n, 8n].map((key) => ({ key, changed: false, derived: 'same' }));
    store.answer = async () => ({ trajectories: [3n], runs, queues: ['a'] });
    store.hint(undefined);
    await expect.poll(() => told.length).toBe(258);
    expect(new Set(told.splice(0))).toEqual(new Set(['trajectory 3', 'queue', 'run 7']));
    expect(store.polls).toHaveLength(1);
    expect(store.polls[0]!.trajectories).toHaveLength(1000);
    expect(store.polls[0]).toMatchObject({ runs: [7n, 8n], queues: ['a'], since: undefined });

    store.answer = async () => ({
      runs: [
        { ...runs[0]!, derived: 'another turn' },
        { ...runs[1]!, changed: true },
      ],
    });
    store.hint(undefined);
    await expect.poll(() => told).toEqual(['run 7', 'run 8']);
    expect(store.polls[1]!.since).toMatchObject({ next: 1n });
  });

  it('RD2: polls are rare while hints of others arrive, and at every tick while they do not', async () => {
    using it = hub(5);
    const { changes, store, tell } = it;
    let ticks = 0;
    changes.onTrajectory(ref(1n), () => 0n, tell('trajectory'));
    changes.onTick(() => {
      ticks += 1;
    });
    const pollsIn = async (count: number) => {
      [ticks, store.polls.length] = [0, 0];
      while (ticks < count) await wait(1);
      return [store.polls.length, ticks] as const;
    };
    const [few, ofTicks] = await pollsIn(4 * TICKS_BETWEEN_POLLS);
    expect(few).toBeLessThanOrEqual(Math.ceil(ofTicks / TICKS_BETWEEN_POLLS));
    expect(few).toBeGreaterThanOrEqual(Math.floor(ofTicks / TICKS_BETWEEN_POLLS));
    store.hearsOthers = false;
    const [many, of] = await pollsIn(20);
    expect(many).toBeGreaterThanOrEqual(of - 1);
  });

  it('M5: a run that is subscribed to during a poll is looked at after it', async () => {
    using it = hub();
    const { changes, store, told, tell } = it;
    const answered = Promise.withResolvers<Partial<ChangedRows>>();
    changes.onRun(1n, tell('run 1'));
    store.answer = () => answered.promise;
    store.hint(undefined);
    changes.onRun(2n, tell('run 2'));
    answered.resolve({ runs: [{ key: 1n, changed: false, derived: '' }] });
    await expect.poll(() => told).toEqual(['run 2']);
  });

  it('RD2: what happens during a poll causes another one, one at a time', async () => {
    using it = hub();
    const { changes, store, tell } = it;
    const answered = Promise.withResolvers<Partial<ChangedRows>>();
    changes.onTrajectory(ref(1n), () => 0n, tell('trajectory'));
    store.answer = () => answered.promise;
    for (let i = 0; i < 10; i += 1) store.hint(undefined);
    expect(store.polls).toHaveLength(1);
    answered.resolve({});
    await expect.poll(() => store.polls.length).toBe(2);
    await wait(10);
    expect(store.polls).toHaveLength(2);
  });

  it('A1: after polls that fail, all who wait read for themselves', async () => {
    using it = hub(5);
    const { changes, store, told, tell } = it;
    store.answer = () => Promise.reject(new Error('down'));
    changes.onTrajectory(ref(1n), () => 0n, tell('trajectory'));
    changes.onQueue('a', tell('queue'));
    await expect.poll(() => new Set(told)).toEqual(new Set(['trajectory', 'queue']));
  });

  it('forgets those who do not wait any more', async () => {
    using it = hub();
    const { changes, store, told, tell } = it;
    const stops = [
      changes.onTrajectory(ref(1n), () => 0n, tell('trajectory')),
      changes.onRun(1n, tell('run')),
      changes.onWatchedRun(1n, tell('watched run')),
      changes.onQueue('a', tell('queue')),
      changes.onSeries('r', tell('series')),
      changes.onAnyRun(tell('any run')),
      changes.onAnyTrajectory(tell('any trajectory')),
      changes.onPoll(tell('poll')),
      changes.onTick(tell('tick')),
    ];
    for (const stop of [...stops, ...stops]) stop();
    expect(changes.listeners).toBe(0);
    for (const hint of [trajectoryHint(1n), runHint(1n), undefined]) store.hint(hint);
    await wait(1);
    expect([told, store.polls]).toEqual([[], []]);
  });
});
