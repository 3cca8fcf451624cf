import { describe, expect, it } from 'vitest';
import { SlotQueue } from '../../src/queue/slot_queue.ts';

/** Enters the queue and records the name when the slot starts. */
function visitor(queue: SlotQueue, begun: string[]) {
  return (name: string, weight: number, key?: string) => {
    const slot = queue.enter(weight, key);
    void slot.begun.then((began) => began && begun.push(name));
    return slot;
  };
}

/** Resolves after the reactions of every promise that can settle now have run. */
const settled = () => new Promise((resolve) => setImmediate(resolve));

describe('MS1, T13: large messages wait for slots', () => {
  it('slots are granted up to the capacity, in order of arrival, even if a later one would fit earlier', async () => {
    const begun: string[] = [];
    const enter = visitor(new SlotQueue(10), begun);
    const first = enter('first', 6);
    enter('second', 6);
    enter('third', 1);
    await settled();
    expect(begun).toEqual(['first']);
    first.end();
    await settled();
    expect(begun).toEqual(['first', 'second', 'third']);
  });

  it('MS5: keys are served in turn, and those of one key in order of arrival', async () => {
    const begun: string[] = [];
    const enter = visitor(new SlotQueue(10), begun);
    const slots = [enter('a1', 10, 'a'), enter('a2', 10, 'a'), enter('a3', 10, 'a'), enter('b1', 10, 'b')];
    for (const i of [0, 1, 3, 2]) {
      await settled();
      slots[i]!.end();
    }
    expect(begun).toEqual(['a1', 'a2', 'b1', 'a3']);
  });

  it('a weight above the capacity gets a slot alone', async () => {
    const begun: string[] = [];
    const enter = visitor(new SlotQueue(10), begun);
    const giant = enter('giant', Number.POSITIVE_INFINITY);
    enter('small', 1);
    await settled();
    expect(begun).toEqual(['giant']);
    giant.end();
    await settled();
    expect(begun).toEqual(['giant', 'small']);
  });

  it('a slot that is released twice is returned to the capacity once', async () => {
    const begun: string[] = [];
    const enter = visitor(new SlotQueue(10), begun);
    const first = enter('first', 10);
    first.end();
    first.end();
    enter('second', 10);
    enter('third', 10);
    await settled();
    expect(begun).toEqual(['first', 'second']);
  });

  it('a slot that ends before it starts leaves the queue and uses no capacity', async () => {
    const begun: string[] = [];
    const queue = new SlotQueue(10);
    const enter = visitor(queue, begun);
    const first = enter('first', 6);
    const second = enter('second', 10);
    enter('third', 4);
    second.end();
    expect(await second.begun).toBe(false);
    await settled();
    expect(begun, 'those behind it need not wait for it').toEqual(['first', 'third']);
    first.end();
    second.end();
    enter('fourth', 6);
    await settled();
    expect(begun).toEqual(['first', 'third', 'fourth']);
    expect(queue.slots).toBe(2);
  });
});
