import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { CartPole, type CartPoleState, type Push, Random } from '../../src/demo/cartpole.ts';

interface ReferenceStep {
  readonly state: readonly number[];
  readonly observation: readonly number[];
  readonly reward: number;
  readonly terminated: boolean;
  readonly truncated: boolean;
}
interface Reference {
  readonly episodes: readonly {
    readonly start: readonly number[];
    readonly pushes: readonly Push[];
    /** Some steps by their number, and the last one. */
    readonly steps: Readonly<Record<string, ReferenceStep>>;
  }[];
}

const reference = JSON.parse(
  readFileSync(new URL('cartpole-reference.json', import.meta.url), 'utf8'),
) as unknown as Reference;

const GENERATOR = Random.seeded(0).state;

function published([x = 0, xDot = 0, theta = 0, thetaDot = 0]: readonly number[]): CartPole {
  return new CartPole({ x, xDot, theta, thetaDot, noise: 0, steps: 0, generator: GENERATOR });
}

function numbers({ x, xDot, theta, thetaDot }: CartPoleState): number[] {
  return [x, xDot, theta, thetaDot];
}

describe('the random generator', () => {
  it('is xoshiro128**, with its published numbers', () => {
    const random = new Random([1, 2, 3, 4]);
    const first = Array.from({ length: 10 }, () => random.uint32());
    expect(first).toEqual([
      11520, 0, 5927040, 70819200, 2031721883, 1637235492, 1287239034, 3734860849, 3729100597, 4258142804,
    ]);
  });

  it('continues from an exported state as if it had never stopped', () => {
    const random = Random.seeded(7);
    for (let i = 0; i < 100; i++) random.uint32();
    const again = new Random(random.state);
    for (let i = 0; i < 100; i++) expect(again.uniform(-1, 1)).toBe(random.uniform(-1, 1));
  });

  it('returns doubles within the requested bounds', () => {
    const random = Random.seeded(1);
    const values = Array.from({ length: 10_000 }, () => random.uniform(-3, 5));
    expect(Math.min(...values)).toBeGreaterThanOrEqual(-3);
    expect(Math.max(...values)).toBeLessThan(5);
    expect(values.reduce((sum, value) => sum + value, 0) / values.length).toBeCloseTo(1, 0);
  });

  it('refuses to start from all zeros, a state that it would never leave', () => {
    expect(() => new Random([0, 0, 0, 0])).toThrow(/all zeros/);
  });
});

describe('CartPole-v1', () => {
  it.each(reference.episodes.map((episode) => [episode.pushes.length, episode] as const))(
    'without noise moves like Gymnasium, through an episode of %i steps',
    (length, episode) => {
      const cart = published(episode.start);
      for (const push of episode.pushes) {
        const step = cart.step(push);
        const expected = episode.steps[cart.state.steps];
        if (expected === undefined) continue;
        numbers(cart.state).forEach((value, i) => {
          expect(value).toBeCloseTo(expected.state[i] ?? Number.NaN, 12);
        });
        expect([...step.observation]).toEqual(expected.observation);
        expect(step).toMatchObject({
          reward: expected.reward,
          terminated: expected.terminated,
          truncated: expected.truncated,
        });
      }
      expect(cart.state.steps).toBe(length);
      expect(() => cart.step(0)).toThrow(/episode has ended/);
    },
  );

  it('restores any snapshot exactly, including the sign of zero', () => {
    const double = fc.double({ noNaN: true, noDefaultInfinity: true });
    const word = fc.integer({ min: 0, max: 2 ** 32 - 1 });
    const state = fc.record(
      {
        x: double,
        xDot: double,
        theta: double,
        thetaDot: double,
        noise: double,
        steps: fc.nat(),
        generator: fc.tuple(word, word, word, fc.integer({ min: 1, max: 2 ** 32 - 1 })),
      },
      { noNullPrototype: true },
    );
    fc.assert(
      fc.property(state, (start) => {
        const cart = new CartPole(start);
        const restored = CartPole.restore(cart.snapshot());
        expect(restored.state).toStrictEqual(start); // toStrictEqual distinguishes 0 and -0
        expect(restored.snapshot()).toEqual(cart.snapshot());
      }),
    );
  });

  it('continues exactly from a snapshot, including noise, because the generator is part of the state', () => {
    const cart = CartPole.reset(3, 5);
    for (let i = 0; i < 12; i++) cart.step((i % 2) as Push);
    const restored = CartPole.restore(cart.snapshot());
    for (let i = 0; i < 12; i++) expect(restored.step((i % 2) as Push)).toStrictEqual(cart.step((i % 2) as Push));
    expect(restored.state).toStrictEqual(cart.state);
  });

  it('depends on the noise: another generator leads to another state', () => {
    const cart = CartPole.reset(3, 5);
    const other = new CartPole({ ...cart.state, generator: Random.seeded(4).state });
    cart.step(1);
    other.step(1);
    expect(other.state.xDot).not.toBe(cart.state.xDot);
  });

  it('keeps a snapshot readable: JSON with every number by name', () => {
    const text = new TextDecoder().decode(published([0.1, -0, 0.25, 1e-7]).snapshot());
    expect(text).toBe(
      '{"environment":"CartPole-v1","steps":0,"x":0.1,"xDot":-0,"theta":0.25,"thetaDot":1e-7,"noise":0,' +
        `"generator":${JSON.stringify(GENERATOR)}}`,
    );
  });

  it('refuses a snapshot of another kind', () => {
    const bytes = (text: string) => new TextEncoder().encode(text);
    expect(() => CartPole.restore(bytes('{"environment":"Pong"}'))).toThrow(/not a snapshot of CartPole-v1/);
    expect(() => CartPole.restore(bytes('{"environment":"CartPole-v1","x":"0"}'))).toThrow(/not a snapshot/);
    expect(() => CartPole.restore(Uint8Array.of(0xff))).toThrow();
  });
});
