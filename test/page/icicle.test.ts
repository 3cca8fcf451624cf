import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { icicleOf, valueShades } from '../../page/src/tree/icicle.ts';

const node = (id: string, parentId: string, visits: number, value = 0) => ({ id, parentId, visits, value });

describe('the icicle chart of a search tree', () => {
  it('divides the width of a node among its branches by their visits, and keeps the rest', () => {
    const cells = icicleOf([node('a', '', 10), node('b', 'a', 4), node('c', 'a', 1), node('d', 'b', 8)], 0);
    expect(cells.map(({ item, left, width, depth }) => [item.id, left, width, depth])).toEqual([
      ['a', 0, 1, 0],
      ['b', 0, 0.4, 1],
      ['c', 0.4, 0.1, 1],
      ['d', 0, 0.4, 2],
    ]);
  });

  it('leaves out what is too narrow, and what is below it', () => {
    const cells = icicleOf([node('a', '', 1000), node('b', 'a', 1), node('c', 'b', 1)], 0.01);
    expect(cells.map(({ item }) => item.id)).toEqual(['a']);
  });

  it('keeps every branch within its parent, and none above another, whatever the visits are', () => {
    const visits = fc.oneof(fc.nat(100), fc.double(), fc.constantFrom(Number.NaN, Number.POSITIVE_INFINITY, -1));
    const tree = fc
      .array(fc.tuple(visits, fc.nat()), { minLength: 1, maxLength: 60 })
      .map((all) => all.map(([count, parent], at) => node(`${at}`, at === 0 ? '' : `${parent % at}`, count)));
    fc.assert(
      fc.property(tree, (items) => {
        const cells = icicleOf(items, 1e-6);
        const byId = new Map(cells.map((cell) => [cell.item.id, cell]));
        for (const cell of cells) {
          const parent = byId.get(cell.item.parentId) ?? { left: 0, width: 1, depth: -1 };
          expect(cell.left).toBeGreaterThanOrEqual(parent.left - 1e-9);
          expect(cell.left + cell.width).toBeLessThanOrEqual(parent.left + parent.width + 1e-9);
          expect(cell.depth).toBe(parent.depth + 1);
        }
        for (const row of Map.groupBy(cells, ({ depth }) => depth).values()) {
          const ordered = row.toSorted((a, b) => a.left - b.left);
          for (const [at, { left, width }] of ordered.entries()) {
            const next = ordered[at + 1];
            if (next !== undefined) expect(left + width).toBeLessThanOrEqual(next.left + 1e-9);
          }
        }
      }),
    );
  });

  it('takes a tree that is 100,000 deep', () => {
    const items = Array.from({ length: 100_000 }, (_, at) => node(`${at}`, at === 0 ? '' : `${at - 1}`, 1));
    expect(icicleOf(items, 0.001)).toHaveLength(100_000);
  });

  it('shades values between the least and the largest finite one', () => {
    const shade = valueShades([node('a', '', 1, -1), node('b', '', 1, 3), node('c', '', 1, Number.POSITIVE_INFINITY)]);
    expect([-1, 1, 3, Number.POSITIVE_INFINITY, Number.NaN].map(shade)).toEqual([0, 0.5, 1, 1, 0.5]);
    expect(valueShades([node('a', '', 1, 2)])(2)).toBe(0.5);
  });
});
