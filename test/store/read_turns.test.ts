import { describe, expect, it } from 'vitest';
import { ReadTurns } from '../../src/store/sql/read_turns.ts';

/** More than a stretch of work lasts. */
const LONG_MS = 5;

const LARGE = Array.from({ length: 1000 }, (_, i) => i);

function work(): void {
  const end = performance.now() + LONG_MS;
  while (performance.now() < end);
}

/** Counts the turns of the event loop until `stop`. */
function countTurns() {
  let turns = 0;
  let over = false;
  const tick = () => {
    turns += 1;
    if (!over) setImmediate(tick);
  };
  setImmediate(tick);
  return {
    get turns() {
      return turns;
    },
    stop() {
      over = true;
    },
  };
}

describe('A5: turns of readers', () => {
  it('give large results one after the other, each a turn of the event loop after the work on the one before', async () => {
    const turns = new ReadTurns();
    const loop = countTurns();
    const seen: { reader: number; turn: number }[] = [];
    const reader = async (name: number) => {
      await turns.handOver(Promise.resolve(LARGE));
      seen.push({ reader: name, turn: loop.turns });
      work();
    };
    await Promise.all(Array.from({ length: 10 }, (_, name) => reader(name)));
    loop.stop();
    expect(seen.map(({ reader: name }) => name)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    for (const [i, { turn }] of seen.entries()) if (i > 0) expect(turn).toBeGreaterThan(seen[i - 1]!.turn);
  });

  it('let the event loop turn between the large results of a single reader', async () => {
    const turns = new ReadTurns();
    const loop = countTurns();
    for (let page = 0; page < 10; page += 1) {
      await turns.handOver(Promise.resolve(LARGE));
      work();
    }
    loop.stop();
    expect(loop.turns).toBeGreaterThanOrEqual(9);
  });

  it('let timers of others fire between two large results while somebody writes', async () => {
    const turns = new ReadTurns();
    const order: string[] = [];
    for (let page = 0; page < 5; page += 1) {
      turns.wrote();
      await turns.handOver(Promise.resolve(LARGE));
      order.push('page');
      setTimeout(() => order.push('timer'), 1);
      work();
    }
    expect(order.join(' ')).toMatch(/^page timer page timer page timer page timer page/);
  });

  it('do not hold up small results', async () => {
    const turns = new ReadTurns();
    const loop = countTurns();
    const large = Array.from({ length: 20 }, () => turns.handOver(Promise.resolve(LARGE)).then(work));
    let begun = loop.turns;
    for (let i = 0; i < 100; i += 1) await turns.handOver(Promise.resolve([i]));
    expect(loop.turns).toBe(begun);
    begun = loop.turns;
    await Promise.all(large);
    loop.stop();
    expect(loop.turns).toBeGreaterThan(begun);
  });

  it('go on after a reading has failed', async () => {
    const turns = new ReadTurns();
    await expect(turns.handOver(Promise.reject(new Error('no rows')))).rejects.toThrow('no rows');
    expect(await turns.handOver(Promise.resolve(LARGE))).toBe(LARGE);
  });
});
