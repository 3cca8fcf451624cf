import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Change, changeText, parseChange, type SeriesChange, seriesHash } from '../../src/domain/change.ts';

const step = fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n });
const mark = fc.nat(2 ** 32 - 1);
const series: fc.Arbitrary<SeriesChange> = fc.record({
  runId: fc.uuid(),
  lowest: fc.array(fc.tuple(mark, step), { maxLength: 64 }).map((all) => new Map(all)),
  ofOthers: fc.option(step, { nil: undefined }),
});

describe('hints of changes, as text', () => {
  it('are read back as they were written, and need no comma and no colon', () => {
    const change: fc.Arbitrary<Change> = fc.oneof(fc.bigInt({ min: 1n, max: 2n ** 63n - 1n }), series);
    fc.assert(
      fc.property(change, (each) => {
        expect(parseChange(changeText(each))).toEqual(each);
        expect(changeText(each)).not.toMatch(/[,:]/);
      }),
    );
  });

  it('of very many series name the lowest step of all of them, and fit into a notification', () => {
    const lowest = new Map(Array.from({ length: 10_000 }, (_, i) => [i, BigInt(5000 - i)] as const));
    const text = changeText({ runId: 'a', lowest, ofOthers: 7n });
    expect(text.length).toBeLessThan(100);
    expect(parseChange(text)).toEqual({ runId: 'a', lowest: new Map(), ofOthers: -4999n });
  });

  it.each(['', '*', 'A', '12345678901234', 'series~a~*', 'series~a~~1', 'series~a~~1.x!', 'series~a~~.1'])(
    '%j may mean anything',
    (text) => {
      expect(parseChange(text)).toBeUndefined();
    },
  );

  it('distinguish series of a run from those of its stages', () => {
    const marks = [undefined, 's1', 's2'].flatMap((stageId) =>
      ['loss', 'reward'].map((name) => seriesHash({ stageId, name })),
    );
    expect(new Set(marks).size).toBe(6);
  });
});
