/** Rows of a tree: a parent above its branches. Trees can have 100,000 rows and any depth, so nothing is recursive. */

export interface Item {
  readonly id: string;
  /** Empty for a root. A parent that is not among the items counts as none. */
  readonly parentId: string;
  /** Last shared step. −1 for a root. */
  readonly branchPoint: number;
  /** First step number that the trajectory does not have. */
  readonly end: number;
  readonly name: string;
  readonly reward: number;
  /** Reward per step since the branch point, minus that of the parent. Undefined if there is nothing to compare. */
  readonly gain: number | undefined;
  readonly status: number;
  readonly deleted: boolean;
  readonly tags?: readonly ItemTag[];
  /** The run whose main trajectory this is. */
  readonly run?: { readonly id: string; readonly name: string } | undefined;
  /** Of a node of a search tree: the metrics `visits` and `value` of its trajectory. */
  readonly search?: { readonly visits: number; readonly value: number } | undefined;
}

/** A name for a step. */
export interface ItemTag {
  readonly name: string;
  readonly step: number;
}

export type Order = 'branch' | 'gain' | 'time';
export const ORDERS: readonly Order[] = ['branch', 'gain', 'time'];

export interface Row {
  readonly item: Item;
  /** 0 for a root. */
  readonly depth: number;
  /** Index of the parent's row, or −1. */
  readonly parent: number;
  readonly branches: number;
  readonly open: boolean;
}

/** Among the closed rows: all are closed, except for the others of the set. */
export const ALL_CLOSED = '*';

/** Returns the closed rows after one was opened or closed. */
export function toggled(closed: ReadonlySet<string>, id: string, open: boolean): ReadonlySet<string> {
  const next = new Set(closed);
  if (open === closed.has(ALL_CLOSED)) next.add(id);
  else next.delete(id);
  return next;
}

export interface RowOptions {
  readonly order: Order;
  /** Ids of closed rows. With ALL_CLOSED, ids of open rows. */
  readonly closed: ReadonlySet<string>;
  /** Shows only rows whose name, run, tags or id contain this, with their ancestors. */
  readonly find: string;
}

/** Returns the visible rows. `items` are in order of creation, parents before branches. */
export function rowsOf(items: readonly Item[], { order, closed, find }: RowOptions): Row[] {
  const ids = new Set(items.map(({ id }) => id));
  const branches = Map.groupBy(items, ({ parentId }) => (ids.has(parentId) ? parentId : ''));
  for (const siblings of branches.values()) sortSiblings(siblings, order);
  const shown = find === '' ? undefined : matchesWithAncestors(items, find);
  const rows: Row[] = [];
  const open = (branches.get('') ?? []).toReversed().map((item) => ({ item, depth: 0, parent: -1 }));
  for (let next = open.pop(); next !== undefined; next = open.pop()) {
    if (shown?.has(next.item.id) === false) continue;
    const below = branches.get(next.item.id) ?? [];
    const isClosed = closed.has(next.item.id) !== closed.has(ALL_CLOSED);
    const isOpen = below.length > 0 && (!isClosed || shown !== undefined);
    const parent = rows.length;
    rows.push({ ...next, branches: below.length, open: isOpen });
    if (!isOpen) continue;
    for (let at = below.length - 1; at >= 0; at -= 1) {
      const item = below[at];
      if (item !== undefined) open.push({ item, depth: next.depth + 1, parent });
    }
  }
  return rows;
}

/** The items are in order of creation already. */
function sortSiblings(siblings: Item[], order: Order): void {
  if (order === 'branch') siblings.sort((a, b) => a.branchPoint - b.branchPoint);
  const gain = (item: Item) =>
    item.gain === undefined || Number.isNaN(item.gain) ? Number.NEGATIVE_INFINITY : item.gain;
  if (order === 'gain') siblings.sort((a, b) => (gain(b) === gain(a) ? 0 : gain(b) - gain(a)));
}

function matchesWithAncestors(items: readonly Item[], find: string): ReadonlySet<string> {
  const byId = new Map(items.map((item) => [item.id, item]));
  const text = find.toLowerCase();
  const shown = new Set<string>();
  for (const item of items) {
    const words = [item.name, item.run?.name ?? '', ...(item.tags ?? []).map(({ name }) => name)];
    if (!words.some((word) => word.toLowerCase().includes(text)) && !item.id.includes(text)) continue;
    for (let at: Item | undefined = item; at !== undefined && !shown.has(at.id); at = byId.get(at.parentId)) {
      shown.add(at.id);
    }
  }
  return shown;
}

/** Returns a trajectory and its ancestors, from the trajectory to the root. */
export function lineageOf(items: ReadonlyMap<string, Item>, id: string): Item[] {
  const found: Item[] = [];
  for (let at = items.get(id); at !== undefined; at = items.get(at.parentId)) found.push(at);
  return found;
}

/** Returns the root. Live changes come in any order, so it need not be the first item. */
export function rootOf(items: readonly Item[]): Item | undefined {
  return items.find(({ parentId }) => parentId === '') ?? items[0];
}

/** Returns the trajectory of the highest reward, undefined if there is none. */
export function bestOf(items: readonly Item[]): Item | undefined {
  let best: Item | undefined;
  for (const item of items)
    if (!Number.isNaN(item.reward) && !(best !== undefined && item.reward <= best.reward)) best = item;
  return best;
}

/**
 * Returns the gain at which colours are saturated: the 90th percentile of absolute gains, so that outliers do not rule.
 */
export function gainScale(items: readonly Item[]): number {
  const sizes = items.flatMap(({ gain }) => (gain !== undefined && Number.isFinite(gain) ? [Math.abs(gain)] : []));
  sizes.sort((a, b) => a - b);
  return sizes[Math.floor(sizes.length * 0.9)] || 1;
}

/** Returns where a gain is on the scale of colours: −1 (worse) to 1 (better). */
export function gainShade(gain: number | undefined, scale: number): number | undefined {
  if (gain === undefined || Number.isNaN(gain)) return undefined;
  return Math.max(-1, Math.min(1, gain / scale));
}
