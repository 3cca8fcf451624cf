import { describe, expect, it } from 'vitest';
import { Turnstile } from '../../src/listen/turnstile.ts';

/** Enters and notes the name when the turn begins. */
function visitor(turnstile: Turnstile, begun: string[]) {
  return (name: string, weight: number) => {
    const turn = turnstile.enter(weight);
    void turn.begun.then((began) => began && begun.push(name));
    return turn;
  };
}

/** Resolves when every promise that could be settled by now has called its reactions. */
const settled = () => new Promise((resolve) => setImmediate(resolve));

describe('MS1, T13: large messages take turns', () => {
  it('as many turns are held as there is room for, first come, first served, also where a later one would fit', async () => {
    const begun: string[] = [];
    const enter = visitor(new Turnstile(10), begun);
    const first = enter('first', 6);
    enter('second', 6);
    enter('third', 1);
    await settled();
    expect(begun).toEqual(['first']);
    first.end();
    await settled();
    expect(begun).toEqual(['first', 'second', 'third']);
  });

  it('a weight above the capacity goes alone', async () => {
    const begun: string[] = [];
    const enter = visitor(new Turnstile(10), begun);
    const giant = enter('giant', Number.POSITIVE_INFINITY);
    enter('small', 1);
    await settled();
    expect(begun).toEqual(['giant']);
    giant.end();
    await settled();
    expect(begun).toEqual(['giant', 'small']);
  });

  it('a turn that is ended twice is given back once', async () => {
    const begun: string[] = [];
    const enter = visitor(new Turnstile(10), begun);
    const first = enter('first', 10);
    first.end();
    first.end();
    enter('second', 10);
    enter('third', 10);
    await settled();
    expect(begun).toEqual(['first', 'second']);
  });

  it('a turn that ends before it began leaves the queue, and takes nothing', async () => {
    const begun: string[] = [];
    const turnstile = new Turnstile(10);
    const enter = visitor(turnstile, begun);
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
    expect(turnstile.turns).toBe(2);
  });
});
