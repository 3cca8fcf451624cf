import { describe, expect, it } from 'vitest';
import { addReward, contentStates } from '../../src/domain/step.ts';
import { makeStep, sha256, textAction, textObservation } from '../support/steps.ts';

describe('rewards', () => {
  it('W11, M3: the sum skips missing values and NaN, but not infinities', () => {
    expect([undefined, 1, Number.NaN, 2.5].reduce(addReward, 0)).toBe(3.5);
    expect(addReward(1, Infinity)).toBe(Infinity);
    expect(addReward(1, 0)).toBe(1);
    expect(Object.is(addReward(0, undefined), 0)).toBe(true);
  });
});

describe('states in contents', () => {
  it('S2: are those that actions and observations refer to, in order, each once', () => {
    const refer = (word: string) => ({ kind: 'state', digest: sha256(word), mediaType: '', size: 1 }) as const;
    const step = makeStep(1n, {
      actions: [textAction('', { content: refer('b') }), textAction('plain')],
      observations: [
        textObservation('', { content: refer('a') }),
        textObservation('', { content: refer('b') }),
        textObservation('', { content: undefined }),
      ],
    });
    expect(contentStates(step)).toEqual([sha256('b'), sha256('a')]);
    expect(contentStates(makeStep(1n))).toEqual([]);
  });
});
