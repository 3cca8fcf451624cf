import { describe, expect, it } from 'vitest';
import { parametersIn } from './parameters.ts';
import { sources } from './source.ts';

/** From this number on, a call no longer shows which argument is which. Pass an object. */
const MANY = 6;
const EXCEPTIONS = 3;

describe('parameters', () => {
  it('are counted of functions, methods, constructors and declared types, and of no call', () => {
    const text = `
      function plain(this: Window, a: Map<string, string>, { b, c }: Pair, d = f(1, 2, 3)): void {}
      const arrow = async (a, ...rest) => ({ method(a, b, c) {} });
      interface Declared { method(a: string, b: number): void; member: (a: string) => void }
      class Made { constructor(a: string) { call(1, 2, 3, 4, 5, 6, '(a, b) => c'); } }`;
    const counts = parametersIn({ path: 'a.ts', text }).map(({ of, count }) => `${of}: ${count}`);
    expect(counts.sort()).toEqual([
      'a.ts arrow: 2',
      'a.ts constructor: 1',
      'a.ts member: 1',
      'a.ts method: 2',
      'a.ts method: 3',
      'a.ts plain: 4',
    ]);
  });

  it(`are fewer than ${MANY}, but for at most ${EXCEPTIONS} functions`, () => {
    const all = sources('src').flatMap(parametersIn);
    expect(all.length).toBeGreaterThan(3000);
    const many = all.filter(({ count }) => count >= MANY).map(({ of }) => of);
    expect(many.length, many.join(', ')).toBeLessThanOrEqual(EXCEPTIONS);
  });
});
