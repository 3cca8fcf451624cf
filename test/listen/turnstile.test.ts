import { describe, expect, it } from 'vitest';
import { Turnstile } from '../../src/listen/turnstile.ts';

/** Who is inside, in the order of entering. */
function visitor(turnstile: Turnstile, inside: string[]) {
  return async (name: string, weight: number) => {
    const leave = await turnstile.enter(weight);
    inside.push(name);
    return leave;
  };
}

/** Everything that could happen by now has happened. */
const settled = () => new Promise((resolve) => setImmediate(resolve));

describe('T13: large messages take turns', () => {
  it('as many are inside as there is room for, first come, first served, also where a later one would fit', async () => {
    const inside: string[] = [];
    const enter = visitor(new Turnstile(10), inside);
    const first = enter('first', 6);
    void enter('second', 6);
    void enter('third', 1);
    await settled();
    expect(inside).toEqual(['first']);
    (await first)();
    await settled();
    expect(inside).toEqual(['first', 'second', 'third']);
  });

  it('what weighs more than all places goes alone', async () => {
    const inside: string[] = [];
    const enter = visitor(new Turnstile(10), inside);
    const giant = enter('giant', Number.POSITIVE_INFINITY);
    void enter('small', 1);
    await settled();
    expect(inside).toEqual(['giant']);
    (await giant)();
    await settled();
    expect(inside).toEqual(['giant', 'small']);
  });

  it('a place that is given back twice is given back once', async () => {
    const inside: string[] = [];
    const enter = visitor(new Turnstile(10), inside);
    const leave = await enter('first', 10);
    leave();
    leave();
    await enter('second', 10);
    void enter('third', 10);
    await settled();
    expect(inside).toEqual(['first', 'second']);
  });
});
