import { describe, expect, it } from 'vitest';
import { differenceOf, differingText, idsIn, sharedByAll } from '../../page/src/compare/difference.ts';

const series = (...points: readonly (readonly [number, number])[]) => ({
  steps: Float64Array.from(points, ([step]) => step),
  values: Float64Array.from(points, ([, value]) => value),
});

describe('compared trajectories', () => {
  it('differ at each step that one of them has, up to the end of the shorter one', () => {
    const first = series([0, 1], [2, 3], [4, 5]);
    const other = series([0, 1], [1, 4], [3, 4]);
    const { steps, values } = differenceOf(first, other);
    expect([[...steps], [...values]]).toEqual([
      [0, 1, 2, 3],
      [0, 3, 1, 1],
    ]);
    expect(differenceOf(first, series()).steps).toHaveLength(0);
  });

  it('differ by the numbers of tensors, not by their bytes', () => {
    const data = Buffer.from(Float32Array.of(0.1, -2).buffer).toString('base64');
    expect(differingText(`{"tensor":{"dtype":"<f4","shape":[2],"data":"${data}"}}`)).toBe('[0.1,-2]');
    expect(differingText('{"tensor":{"dtype":"<f4","shape":[9,9],"state_digest":"ab"}}')).toBe('<f4 [9, 9]');
    expect(differingText('{"json":"{\\"tensor\\":1}"}')).toBe('{"json":"{\\"tensor\\":1}"}');
    expect(differingText('')).toBe('');
  });

  it('share the steps that every one of them shares with the first', () => {
    expect(sharedByAll([undefined, { sharedSteps: 7n }, { sharedSteps: 3n }])).toBe(3);
    expect(sharedByAll([undefined])).toBe(0);
  });

  it('are named once in the address', () => {
    expect(idsIn('a,b,,a')).toEqual(['a', 'b']);
    expect(idsIn(null)).toEqual([]);
  });
});
