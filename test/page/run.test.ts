import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { smoothed } from '../../page/src/run/smooth.ts';
import { endOf, extent, type Span, timelineRows } from '../../page/src/run/spans.ts';

function span(row: string, start: number, end?: number): Span {
  return { id: `${row} ${start}`, row, start, end, text: '', status: 3, message: '' };
}

describe('the timeline of a run', () => {
  it('never lets two spans of a line overlap, and shows each once', () => {
    const spans = fc.array(
      fc.record({ row: fc.constantFrom('a', 'b'), start: fc.nat(100), length: fc.integer({ min: -5, max: 50 }) }),
    );
    fc.assert(
      fc.property(spans, (given) => {
        const all = given.map(({ row, start, length }) => span(row, start, start + length));
        const rows = timelineRows(all, 200);
        expect(rows.flatMap(({ lines }) => lines.flat()).length).toBe(all.length);
        for (const line of rows.flatMap(({ lines }) => lines)) {
          for (const [at, each] of line.entries())
            if (at > 0) expect(endOf(line[at - 1], 200)).toBeLessThanOrEqual(each.start);
        }
      }),
    );
  });

  it('ends open spans now, and those of wrong clocks where they begin', () => {
    expect([endOf(span('a', 10), 50), endOf(span('a', 60), 50), endOf(span('a', 10, 5), 50)]).toEqual([50, 60, 10]);
    expect(extent([span('a', 10), span('b', 20, 90)], 50)).toEqual([10, 90]);
    expect(extent([span('a', 50, 50)], 50)).toEqual([49, 50]);
  });
});

describe('smoothed lines', () => {
  it('begin at the first value, follow a change, and skip what is no number', () => {
    const line = { steps: Float64Array.of(0, 1, 2, 3, 4), values: Float64Array.of(2, 2, Number.NaN, 4, 4) };
    const { values } = smoothed(line, 0.5);
    expect([...values.slice(0, 3)]).toEqual([2, 2, 2]);
    expect(values[3]).toBeGreaterThan(2);
    expect(values[4]).toBeLessThan(4);
    expect([...smoothed(line, 0).values.slice(3)]).toEqual([4, 4]);
  });
});
