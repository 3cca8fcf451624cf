import { describe, expect, it } from 'vitest';
import { gainOf } from '../../src/domain/gain.ts';

const side = (nextStepNumber: bigint, rewardSum: number) => ({ nextStepNumber, rewardSum });

describe('gain of a branch', () => {
  it('RD8: is the difference of the mean rewards over the steps that both have after the branch point', () => {
    expect(gainOf(side(6n, 11), side(4n, 5), 1n, 9)).toEqual({ gain: 2, gainSteps: 2n });
    expect(gainOf(side(4n, 5), side(6n, 99), 1n, 9)).toEqual({ gain: -2, gainSteps: 2n });
    expect(gainOf(side(3n, 5), side(3n, 5), 1n, 5)).toEqual({ gain: 0, gainSteps: 1n });
  });

  it('RD8: does not exist without a common step after the branch point, and has no number between infinities', () => {
    expect(gainOf(side(2n, 5), side(9n, 7), 1n, 5)).toBeUndefined();
    expect(gainOf(side(9n, 5), side(2n, 7), 1n, 5)).toBeUndefined();
    const infinite = Number.POSITIVE_INFINITY;
    expect(gainOf(side(3n, infinite), side(3n, infinite), 1n, infinite)).toEqual({ gain: undefined, gainSteps: 1n });
    expect(gainOf(side(3n, infinite), side(3n, 1), 1n, 1)).toEqual({ gain: infinite, gainSteps: 1n });
  });
});
