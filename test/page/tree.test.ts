import { create } from '@bufbuild/protobuf';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { StepSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { pixel, ticks, valueOfPixel } from '../../page/src/scale.ts';
import {
  ALL_CLOSED,
  bestOf,
  gainScale,
  gainShade,
  type Item,
  lineageOf,
  rowsOf,
  toggled,
} from '../../page/src/tree/rows.ts';
import { indexAt, type Series, spread, thinned, valueAt } from '../../page/src/tree/series.ts';
import { candidates, isPlotted, labelOf, partsOf } from '../../page/src/tree/value.ts';

function item(id: string, parentId = '', given: Partial<Item> = {}): Item {
  return {
    id,
    parentId,
    branchPoint: 0,
    end: 10,
    name: id,
    reward: 0,
    gain: undefined,
    status: 5,
    deleted: false,
    ...given,
  };
}

const ALL = { order: 'branch', closed: new Set<string>(), find: '' } as const;

function series(...points: readonly (readonly [number, number])[]): Series {
  return {
    steps: Float64Array.from(points, ([step]) => step),
    values: Float64Array.from(points, ([, value]) => value),
  };
}

describe('rows of a tree', () => {
  it('show each item once, a parent above its branches, however the tree looks', () => {
    const tree = fc
      .array(fc.nat(), { maxLength: 60 })
      .map((parents) => [
        item('0'),
        ...parents.map((parent, at) =>
          item(String(at + 1), String(parent % (at + 1)), { branchPoint: parent % 7, gain: parent % 5 }),
        ),
      ]);
    fc.assert(
      fc.property(tree, fc.constantFrom('branch', 'gain', 'time'), (items, order) => {
        const rows = rowsOf(items, { ...ALL, order });
        expect(rows.map((row) => row.item.id).sort()).toEqual(items.map(({ id }) => id).sort());
        for (const [at, row] of rows.entries()) {
          if (row.depth === 0) continue;
          expect(row.parent).toBeLessThan(at);
          expect(rows[row.parent]?.item.id).toBe(row.item.parentId);
          expect(rows[row.parent]?.depth).toBe(row.depth - 1);
        }
      }),
    );
  });

  it('are closed one by one, or all but some', () => {
    const items = [item('r'), item('a', 'r'), item('b', 'a'), item('c', 'b')];
    const shown = (closed: ReadonlySet<string>) => rowsOf(items, { ...ALL, closed }).map((row) => row.item.id);
    const one = toggled(new Set(), 'a', false);
    expect(shown(one)).toEqual(['r', 'a']);
    expect(shown(toggled(one, 'a', true))).toEqual(['r', 'a', 'b', 'c']);
    const all = new Set([ALL_CLOSED, 'r']);
    expect(shown(all)).toEqual(['r', 'a']);
    expect(shown(toggled(all, 'a', true))).toEqual(['r', 'a', 'b']);
    expect(shown(toggled(all, 'r', false))).toEqual(['r']);
  });

  it('order siblings by branch point, by gain with unknown gains last, or by creation', () => {
    const items = [
      item('r'),
      item('a', 'r', { branchPoint: 5, gain: 1 }),
      item('b', 'r', { branchPoint: 2 }),
      item('c', 'r', { branchPoint: 9, gain: 2 }),
    ];
    const shown = (order: 'branch' | 'gain' | 'time') =>
      rowsOf(items, { ...ALL, order })
        .map((row) => row.item.id)
        .join('');
    expect([shown('branch'), shown('gain'), shown('time')]).toEqual(['rbac', 'rcab', 'rabc']);
  });

  it('hide the branches of closed rows, and when searching show matches with their ancestors', () => {
    const items = [item('r'), item('a', 'r'), item('deep', 'a'), item('b', 'r')];
    expect(
      rowsOf(items, { ...ALL, closed: new Set(['a']) }).map((row) => [row.item.id, row.branches, row.open]),
    ).toEqual([
      ['r', 2, true],
      ['a', 1, false],
      ['b', 0, false],
    ]);
    const found = rowsOf(items, { ...ALL, closed: new Set(['a']), find: 'DEEP' });
    expect(found.map((row) => row.item.id)).toEqual(['r', 'a', 'deep']);
  });

  it('take 100,000 rows, also 100,000 deep, and a parent that is not there', () => {
    const chain = Array.from({ length: 100_000 }, (_, at) => item(String(at), at === 0 ? 'gone' : String(at - 1)));
    const rows = rowsOf(chain, ALL);
    expect([rows.length, rows.at(-1)?.depth]).toEqual([100_000, 99_999]);
    expect(lineageOf(new Map(chain.map((each) => [each.id, each])), '99999')).toHaveLength(100_000);
  });

  it('scale gains to their 90th percentile, so that one outlier does not take the whole scale', () => {
    const items = Array.from({ length: 20 }, (_, at) => item(String(at), 'r', { gain: at === 0 ? 1000 : at / 20 }));
    expect(gainScale(items)).toBe(0.95);
    expect([gainShade(1000, 0.9), gainShade(-0.45, 0.9), gainShade(undefined, 1), gainShade(Number.NaN, 1)]).toEqual([
      1,
      -0.5,
      undefined,
      undefined,
    ]);
    expect(gainScale([item('r')])).toBe(1);
    expect(bestOf([item('a', '', { reward: Number.NaN }), item('b', '', { reward: 2 }), item('c')])?.id).toBe('b');
  });
});

describe('series', () => {
  it('find the value at a step', () => {
    const line = series([1, 10], [2, 20], [5, 50]);
    expect([0, 1, 3, 5, 9].map((step) => valueAt(line, step))).toEqual([undefined, 10, 20, 50, 50]);
    expect(indexAt(line, 4)).toBe(1);
  });

  it('keep every spike when they are thinned', () => {
    const values = Array.from(
      { length: 10_000 },
      (_, at) => [at, at === 5_432 ? 99 : at === 777 ? -99 : at % 3] as const,
    );
    const thin = thinned(series(...values), 0, 10_000, 100);
    expect(thin.steps.length).toBeLessThanOrEqual(404);
    expect([Math.max(...thin.values), Math.min(...thin.values)]).toEqual([99, -99]);
    expect([...thin.steps]).toEqual([...thin.steps].sort((a, b) => a - b));
    expect([thin.steps[0], thin.steps.at(-1)]).toEqual([0, 9_999]);
  });

  it('say how far branches part from their parents', () => {
    const items = [item('r'), item('a', 'r')];
    const parent = series([0, 0], [1, 1], [2, 2]);
    expect(
      spread(
        items,
        new Map([
          ['r', parent],
          ['a', series([1, 1], [2, 2], [3, 3])],
        ]),
      ),
    ).toBe(0);
    expect(
      spread(
        items,
        new Map([
          ['r', parent],
          ['a', series([1, 1], [2, 0])],
        ]),
      ),
    ).toBe(1);
  });
});

describe('plotted values', () => {
  const step = create(StepSchema, {
    reward: 2,
    rewardSum: 7,
    metrics: { loss: 0.5 },
    observations: [{ content: { json: '{"pole":{"angle":0.1},"a/b":[3,"4"]}' } }],
    infoJson: 'not JSON',
  });

  it('are named by kind, name and pointer', () => {
    expect(partsOf('sum')).toEqual({ kind: 'sum', name: '', pointer: '' });
    expect(partsOf('metric:train/loss:a')).toEqual({ kind: 'metric', name: 'train/loss:a', pointer: '' });
    expect(partsOf('observation:/pole/angle')).toEqual({ kind: 'observation', name: '', pointer: '/pole/angle' });
    expect(partsOf('state:env:/a:b')).toEqual({ kind: 'state', name: 'env', pointer: '/a:b' });
    expect(['sum', 'metric:a', 'observation:', 'state:env:/x'].filter((each) => !isPlotted(each))).toEqual([]);
    expect(['', 'metric:', 'observation:x', 'state:/x', 'other:/x'].filter(isPlotted)).toEqual([]);
    expect(labelOf('state:env:/x')).toBe('state env /x');
  });

  it('are offered as far as a step has them', () => {
    expect(candidates(step)).toEqual(['metric:loss', 'observation:/pole/angle', 'observation:/a~1b/0']);
    const tensor = { dtype: '<f4', shape: [2], data: new Uint8Array(8) };
    const array = create(StepSchema, {
      observations: [{ content: { tensor } }],
      actions: [{ content: { json: '1' } }],
    });
    expect(candidates(array)).toEqual(['observation:/0', 'observation:/1', 'action:']);
    const parts = [
      { type: 'pos', content: { tensor } },
      { type: 'goal["a/b"]', content: { json: '{"x":1}' } },
      { type: 'pixels', content: { tensor: { dtype: '|u1', shape: [64, 65], data: new Uint8Array(4160) } } },
    ];
    expect(candidates(create(StepSchema, { observations: parts }))).toEqual([
      'observation:/pos/0',
      'observation:/pos/1',
      'observation:/goal/a~1b/x',
    ]);
  });
});

describe('scales', () => {
  it.each([
    [0, 10, 5, [0, 2, 4, 6, 8, 10]],
    [-0.0123, 0.0213, 4, [-0.01, 0, 0.01, 0.02]],
    [3, 3, 4, [3]],
    [0, 1e300, 2, [0, 5e299, 1e300]],
  ])('from %d to %d have round ticks', (low, high, wanted, expected) => {
    expect(ticks(low, high, wanted)).toEqual(expected);
  });

  it('map values to pixels and back', () => {
    const scale = { low: 0, high: 10, from: 100, to: 200 };
    expect([pixel(scale, 5), valueOfPixel(scale, 150), pixel({ ...scale, high: 0 }, 0)]).toEqual([150, 5, 150]);
  });
});
