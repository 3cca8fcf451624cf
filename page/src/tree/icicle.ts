/** The icicle chart of a search tree: a cell for each trajectory, below its parent, as wide as its visits. */

export interface Searched {
  readonly id: string;
  /** Empty for a root. A parent that is not among the items counts as none. */
  readonly parentId: string;
  readonly visits: number;
  readonly value: number;
}

export interface IcicleCell<T extends Searched = Searched> {
  readonly item: T;
  /** Left edge and width, as parts of the whole chart. */
  readonly left: number;
  readonly width: number;
  readonly depth: number;
}

/**
 * Returns the cells that are at least `narrowest` wide, parents before branches. Branches share the width of their
 * parent by their visits. A parent that was visited more often than its branches together keeps the rest. Search trees
 * have any depth, so nothing is recursive.
 */
export function icicleOf<T extends Searched>(items: readonly T[], narrowest: number): IcicleCell<T>[] {
  const ids = new Set(items.map(({ id }) => id));
  const branches = Map.groupBy(items, ({ parentId }) => (ids.has(parentId) ? parentId : ''));
  const cells: IcicleCell<T>[] = [];
  const open: {
    readonly id: string;
    readonly visits: number;
    readonly left: number;
    readonly width: number;
    readonly depth: number;
  }[] = [{ id: '', visits: 0, left: 0, width: 1, depth: 0 }];
  for (let parent = open.pop(); parent !== undefined; parent = open.pop()) {
    const below = branches.get(parent.id) ?? [];
    const total = Math.max(
      parent.visits,
      below.reduce((sum, item) => sum + visitsOf(item), 0),
    );
    let left = parent.left;
    for (const item of below) {
      const width = total === 0 ? 0 : (parent.width * visitsOf(item)) / total;
      if (width >= narrowest) {
        cells.push({ item, left, width, depth: parent.depth });
        open.push({ id: item.id, visits: visitsOf(item), left, width, depth: parent.depth + 1 });
      }
      left += width;
    }
  }
  return cells;
}

function visitsOf({ visits }: Searched): number {
  return Number.isFinite(visits) ? Math.max(0, visits) : 0;
}

/** Returns where a value is between the least and the largest finite value: 0 to 1. */
export function valueShades(items: readonly Searched[]): (value: number) => number {
  let [low, high] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (const { value } of items) {
    if (!Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return (value) => (high > low && !Number.isNaN(value) ? Math.max(0, Math.min(1, (value - low) / (high - low))) : 0.5);
}
