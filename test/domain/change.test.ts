import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  keyOfHint,
  parseSeriesHint,
  runHint,
  type SeriesChange,
  seriesHash,
  seriesHint,
  seriesSubject,
  subjectOf,
  trajectoryHint,
} from '../../src/domain/change.ts';

const step = fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n });
const mark = fc.nat(2 ** 32 - 1);
const series: fc.Arbitrary<SeriesChange> = fc.record({
  runId: fc.uuid(),
  lowest: fc.array(fc.tuple(mark, step), { maxLength: 256 }).map((all) => new Map(all)),
  ofOthers: fc.option(step, { nil: undefined }),
});

describe('hints of changes, as text', () => {
  it('are read back as they were written, and need no comma and no colon', () => {
    fc.assert(
      fc.property(series, fc.bigInt({ min: 1n, max: 2n ** 63n - 1n }), (change, key) => {
        expect(parseSeriesHint(seriesHint(change))).toEqual(change);
        for (const hint of [trajectoryHint(key), runHint(key)]) expect(keyOfHint(hint)).toBe(key);
        expect([seriesHint(change), trajectoryHint(key), runHint(key)].join('')).not.toMatch(/[,:]/);
      }),
    );
  });

  it('name a subject that can be looked up without parsing the rest, and tell runs from trajectories', () => {
    fc.assert(
      fc.property(series, (change) => {
        expect(subjectOf(seriesHint(change))).toBe(seriesSubject(change.runId));
      }),
    );
  });

  it('of very many series name the lowest step of all of them, and fit into a notification', () => {
    const lowest = new Map(Array.from({ length: 10_000 }, (_, i) => [i, BigInt(5000 - i)] as const));
    const text = seriesHint({ runId: 'a', lowest, ofOthers: 7n });
    expect(text.length).toBeLessThan(100);
    expect(parseSeriesHint(text)).toEqual({ runId: 'a', lowest: new Map(), ofOthers: -4999n });
  });

  it.each(['sa~*', 'sa~A', 'sa~12345678901234', 'sa~~1', 'sa~~1.x!', 'sa~~.1'] as const)(
    '%j may mean anything',
    (text) => {
      expect(parseSeriesHint(text)).toBeUndefined();
    },
  );

  it('distinguish series of a run from those of its stages', () => {
    const marks = [undefined, 's1', 's2'].flatMap((stageId) =>
      ['loss', 'reward'].map((name) => seriesHash({ stageId, name })),
    );
    expect(new Set(marks).size).toBe(6);
  });
});
