import { describe, expect, it, vi } from 'vitest';
import { ReadSlots } from '../../src/store/sql/kit/reading/slots.ts';

/** Longer than a work period. */
const LONG_MS = 5;
/** Shorter than the time for which the store counts as being written to after its last write. */
const PARSED_MS = 10;

const LARGE = Array.from({ length: 1000 }, (_, i) => i);

function work(): void {
  const end = performance.now() + LONG_MS;
  while (performance.now() < end);
}

/** Resolves after some iterations of the event loop. */
async function iterations(): Promise<void> {
  for (let i = 0; i < 10; i += 1) await new Promise((resolve) => setImmediate(resolve));
}

/** Counts the iterations of the event loop until `stop`. */
function countIterations() {
  let iterations = 0;
  let over = false;
  const tick = () => {
    iterations += 1;
    if (!over) setImmediate(tick);
  };
  setImmediate(tick);
  return {
    get iterations() {
      return iterations;
    },
    stop() {
      over = true;
    },
  };
}

describe('A5: slots of readers', () => {
  it('deliver large results one at a time, each one event-loop iteration after the previous was processed', async () => {
    const slots = new ReadSlots();
    const loop = countIterations();
    const seen: { reader: number; iteration: number }[] = [];
    const reader = async (name: number) => {
      await slots.handOver(LARGE);
      seen.push({ reader: name, iteration: loop.iterations });
      work();
    };
    await Promise.all(Array.from({ length: 10 }, (_, name) => reader(name)));
    loop.stop();
    expect(seen.map(({ reader: name }) => name)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    for (const [i, { iteration }] of seen.entries())
      if (i > 0) expect(iteration).toBeGreaterThan(seen[i - 1]!.iteration);
  });

  it('MS5: deliver large results to namespaces in turn', async () => {
    const slots = new ReadSlots();
    const seen: string[] = [];
    const read = async (namespace: string) => {
      await slots.handOver(LARGE, namespace);
      seen.push(namespace);
    };
    // The first slot is free. The others wait.
    await Promise.all(['many', 'many', 'many', 'many', 'one', 'one'].map(read));
    expect(seen).toEqual(['many', 'many', 'one', 'many', 'one', 'many']);
  });

  it('MS5: let namespaces read by key in turn while there are writes', async () => {
    vi.spyOn(performance, 'now').mockReturnValue(0);
    const slots = new ReadSlots();
    slots.wrote();
    const seen: string[] = [];
    const read = async (namespace: string) => {
      await slots.takeByKey(namespace);
      seen.push(namespace);
    };
    await Promise.all([...Array.from({ length: 10 }, () => 'many'), 'one'].map(read));
    vi.restoreAllMocks();
    expect(seen.indexOf('one')).toBe(5);
  });

  it('let four reads by key run in each iteration of the event loop while there are writes, and any number otherwise', async () => {
    const slots = new ReadSlots();
    expect(Array.from({ length: 10 }, () => slots.takeByKey())).toEqual(Array(10).fill(undefined));
    // Writes go on for as long as the reads wait, however slow the machine is.
    vi.spyOn(performance, 'now').mockReturnValue(0);
    slots.wrote();
    const loop = countIterations();
    const read = async () => {
      await slots.takeByKey();
      return loop.iterations;
    };
    const iterations = await Promise.all(Array.from({ length: 10 }, read));
    loop.stop();
    vi.restoreAllMocks();
    const [first = 0, second = 0, third = 0] = [...new Set(iterations)];
    expect(iterations).toEqual([...Array(4).fill(first), ...Array(4).fill(second), third, third]);
    expect(first < second && second < third).toBe(true);
  });

  it('yield to the event loop between the large results of a single reader', async () => {
    const slots = new ReadSlots();
    const loop = countIterations();
    for (let page = 0; page < 10; page += 1) {
      await slots.handOver(LARGE);
      work();
    }
    loop.stop();
    expect(loop.iterations).toBeGreaterThanOrEqual(9);
  });

  it('let other timers fire between two large results while there are writes', async () => {
    const slots = new ReadSlots();
    const order: string[] = [];
    for (let page = 0; page < 5; page += 1) {
      slots.wrote();
      await slots.handOver(LARGE);
      order.push('page');
      setTimeout(() => order.push('timer'), 1);
      work();
    }
    expect(order.join(' ')).toMatch(/^page timer page timer page timer page timer page/);
  });

  it('do not pause for the writes of the reader itself, and pause for those of others', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'performance'] });
    try {
      const slots = new ReadSlots();
      const [writer, other] = [{}, {}];
      slots.wrote(writer);
      await slots.take('', writer);
      vi.advanceTimersByTime(LONG_MS);
      slots.wrote(writer);
      // No timer fires until the test moves the time, so this waits for none.
      await slots.take('', writer);
      vi.advanceTimersByTime(LONG_MS);
      // Nobody waits when the work ends.
      await iterations();
      await slots.take('', writer);
      vi.advanceTimersByTime(LONG_MS);
      slots.wrote(other);
      slots.wrote(writer);
      let granted = false;
      const third = slots.take('', writer)?.then(() => {
        granted = true;
      });
      await iterations();
      expect(granted).toBe(false);
      vi.advanceTimersByTime(10 * LONG_MS);
      await third;
      expect(granted).toBe(true);
    } finally {
      vi.useRealTimers();
    }
  });

  it('do not delay small results', async () => {
    const slots = new ReadSlots();
    const loop = countIterations();
    const large = Array.from({ length: 20 }, () => slots.handOver(LARGE).then(work));
    let begun = loop.iterations;
    for (let i = 0; i < 100; i += 1) await slots.handOver([i]);
    expect(loop.iterations).toBe(begun);
    begun = loop.iterations;
    await Promise.all(large);
    loop.stop();
    expect(loop.iterations).toBeGreaterThan(begun);
  });

  it('while there are writes, wait after a page as long as its rows took to parse', async () => {
    const slots = new ReadSlots();
    slots.wrote();
    const order: string[] = [];
    await slots.handOver(LARGE, undefined, PARSED_MS);
    const next = slots.handOver(LARGE).then(() => order.push('page'));
    const rest = setTimeout(() => order.push('rest'), PARSED_MS - 1);
    await next;
    clearTimeout(rest);
    expect(order).toEqual(['rest', 'page']);
  });

  it('require no pause after a read without writes; with writes, a pause as long as the read, at most two seconds', () => {
    const slots = new ReadSlots();
    expect(slots.restAfter(300)).toBe(0);
    slots.wrote();
    expect([slots.restAfter(300), slots.restAfter(4000)]).toEqual([300, 2000]);
  });
});
