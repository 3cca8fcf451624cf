import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { parsePointer } from '../../src/domain/json_pointer.ts';
import { numberAt } from '../../src/domain/numbers/pointer.ts';
import { type SeriesQuery, SeriesSampler } from '../../src/domain/step_series.ts';

const VALUES = [undefined, Number.NaN, 0, -0, 1, -1, 2.5, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY] as const;
const SERIES = fc.array(fc.constantFrom(...VALUES), { maxLength: 70 });

function sampled(from: bigint, values: readonly (number | undefined)[], query: Partial<SeriesQuery>) {
  const all = { value: { of: 'REWARD' }, maxPoints: 8, stretchSteps: 1n, ...query } as const;
  const sampler = new SeriesSampler(from, from + BigInt(values.length), all);
  sampler.addAll(from, values);
  return sampler.series();
}

describe('downsampled values of steps', () => {
  it('RD9: have the first, last, smallest and largest value of each stretch, and not more points than asked', () => {
    const query = fc.record({
      from: fc.bigInt(0n, 2n ** 60n),
      values: SERIES,
      maxPoints: fc.integer({ min: 8, max: 40 }),
    });
    fc.assert(
      fc.property(query, ({ from, values, maxPoints }) => {
        const { stepNumbers, values: shown, stretchSteps } = sampled(from, values, { maxPoints });
        expect(stepNumbers.length).toBeLessThanOrEqual(maxPoints);
        const given = values.flatMap((value, i) =>
          value === undefined || Number.isNaN(value) ? [] : [{ step: from + BigInt(i), value }],
        );
        const expected = [...Map.groupBy(given, ({ step }) => step / stretchSteps).values()].flatMap((stretch) => {
          const least = stretch.toSorted((a, b) => (a.value < b.value ? -1 : Number(a.value > b.value)))[0]!;
          const most = stretch.toSorted((a, b) => (a.value > b.value ? -1 : Number(a.value < b.value)))[0]!;
          const kept = new Set([stretch[0]!, stretch.at(-1)!, least, most]);
          return stretch.filter((point) => kept.has(point));
        });
        expect(stepNumbers).toEqual(expected.map(({ step }) => step));
        expect(shown).toEqual(expected.map(({ value }) => value));
      }),
    );
  });

  it('RD9: stretches are powers of two that begin at multiples, so points stay when a trajectory grows', () => {
    const values = Array.from({ length: 100 }, (_, i) => Math.sin(i));
    const [some, more] = [sampled(0n, values.slice(0, 70), {}), sampled(0n, values, {})];
    expect([some.stretchSteps, more.stretchSteps]).toEqual([64n, 64n]);
    expect(more.stepNumbers.slice(0, 4)).toEqual(some.stepNumbers.slice(0, 4));
    expect(sampled(0n, values, { stretchSteps: 100n }).stretchSteps).toBe(128n);
    expect(sampled(0n, values, { maxPoints: 100 }).stretchSteps).toBe(1n);
  });

  it('RD9: a short range around a high power of two has its own points', () => {
    const { stepNumbers, values } = sampled(2n ** 59n - 3n, [1, 2, 3, 4, 5, 6], {});
    expect(stepNumbers.map((number) => number - 2n ** 59n)).toEqual([-3n, -2n, -1n, 0n, 1n, 2n]);
    expect(values).toEqual([1, 2, 3, 4, 5, 6]);
    const many = sampled(
      2n ** 59n - 300n,
      Array.from({ length: 600 }, (_, i) => i),
      {},
    );
    expect([many.stepNumbers.length, many.values.at(-1)]).toEqual([4, 599]);
  });

  it('RD9: of means, each stretch has one point, at its last step', () => {
    const value = { of: 'REWARD_MEAN' } as const;
    expect(sampled(8n, [1, 3, undefined, 5, 7, Number.NaN], { value, maxPoints: 4, stretchSteps: 4n })).toEqual({
      stepNumbers: [11n, 12n],
      values: [3, 7],
      stretchSteps: 4n,
    });
    const infinite = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
    expect(sampled(0n, infinite, { value, stretchSteps: 2n }).values).toEqual([]);
  });

  it.each([
    ['', '3', 3],
    ['/a/1/~1~0', '{"a":[0,{"/~":2.5}]}', 2.5],
    ['/a~01', '{"a~1":1}', 1],
    ['/', '{"":7}', 7],
    ['/0', '[4]', 4],
    ['/00', '[4]', undefined],
    ['/length', '[4]', undefined],
    ['/toString', '{}', undefined],
    ['/a', '{"a":"1"}', undefined],
    ['/a/b', '{"a":null}', undefined],
    ['', 'no json', undefined],
    ['', '', undefined],
  ])('RD9: the number at %j of %j is %s', (pointer, json, number) => {
    expect(numberAt(json, parsePointer(pointer)!)).toBe(number);
  });

  it.each([
    ['/at/1', '{"at":{"$tuple":[1,2]}}', 2],
    ['', '{"$float":"-Infinity"}', Number.NEGATIVE_INFINITY],
    ['/0/0', '[{"$tuple":[3]}]', 3],
    ['/$tuple', '{"$tuple":1,"a":2}', 1],
    ['/a', '{"$items":[["$a",1]]}', undefined],
  ])('RD9: the number at %j of %j is %s if the media type tells of tags', (pointer, json, number) => {
    expect(numberAt(json, parsePointer(pointer)!, 'application/vnd.anabranch.value+json')).toBe(number);
  });

  it('RD9: what looks like a tag is data without the media type', () => {
    expect(numberAt('{"at":{"$tuple":[1,2]}}', ['at', '1'])).toBeUndefined();
    expect(numberAt('{"at":{"$tuple":[1,2]}}', ['at', '$tuple', '1'])).toBe(2);
  });

  it.each(['a', '/a~', '/~2', '#/a'])('RD9: %j is no JSON Pointer', (pointer) => {
    expect(parsePointer(pointer)).toBeUndefined();
  });
});
