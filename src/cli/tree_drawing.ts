/** Draws a tree of trajectories or runs: one line each, parents above their branches, within the given width. */
import type { Run } from '../../gen/es/anabranch/v1/run_pb.js';
import type { TreeNode } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { cut, fill, type Paint, printable, shortNumber, widthOf } from './columns.ts';
import { colourOf, runStatus, statusName } from './status.ts';

/** One line of the tree. */
export interface TreeItem {
  readonly id: string;
  /** The parent. An item whose parent is not among the items is a root. */
  readonly parentId: string;
  /** The last step shared with the parent. Undefined for a root. */
  readonly branchPoint: bigint | undefined;
  readonly name: string;
  /** Number of steps, including shared ones. Undefined if the item has no steps to count. */
  readonly steps: bigint | undefined;
  readonly reward: number | undefined;
  readonly status: string;
}

export interface DrawingOptions {
  /** What the items are: `trajectory` or `run`. */
  readonly noun: string;
  /** Maximum width of a line. */
  readonly columns: number;
  /** What is shown beside the names: ids, or bars that show who owns which steps. */
  readonly beside: 'ids' | 'bars';
  readonly paint: Paint;
  /** Id of the item that gets a star. */
  readonly here?: string;
}

const ID_COLUMNS = 36;
const NAME_COLUMNS_BESIDE_BARS = 24;

/** Returns the lines, without line ends. The first line is a heading. */
export function drawTree(items: readonly TreeItem[], options: DrawingOptions): string[] {
  const rows = [...walk(items)];
  const { paint, beside, noun } = options;
  const layout = layOut(rows, options);
  const heading = line(layout, {
    name: beside === 'ids' ? noun : '',
    middle: beside === 'ids' ? 'id' : '',
    steps: 'steps',
    reward: 'reward',
    status: 'status',
  });
  return [paint.dim(heading.join(' ').trimEnd()), ...rows.map((row) => drawRow(row, layout, options))];
}

interface Row {
  readonly item: TreeItem;
  /** 0 for the root. */
  readonly depth: number;
  /** Whether more branches of the same parent follow. If so, a vertical line connects them. */
  readonly more: boolean;
  readonly above: Row | undefined;
}

/**
 * Walks depth first, parents before their branches. Branches are sorted by branch point, then by creation. Uses no
 * recursion, because trees can be deeper than the call stack.
 */
function* walk(items: readonly TreeItem[]): Generator<Row> {
  const known = new Set(items.map(({ id }) => id));
  const branches = Map.groupBy(items, ({ parentId }) => (known.has(parentId) ? parentId : ''));
  const waiting: Row[] = [];
  const push = (parentId: string, above: Row | undefined) => {
    const siblings = [...(branches.get(parentId) ?? [])].sort(byBranchPoint).reverse();
    siblings.forEach((item, i) => {
      waiting.push({ item, depth: above === undefined ? 0 : above.depth + 1, more: i > 0, above });
    });
  };
  push('', undefined);
  for (let row = waiting.pop(); row !== undefined; row = waiting.pop()) {
    yield row;
    push(row.item.id, row);
  }
}

function byBranchPoint(a: TreeItem, b: TreeItem): number {
  const difference = (a.branchPoint ?? 0n) - (b.branchPoint ?? 0n);
  return difference < 0n ? -1 : difference > 0n ? 1 : 0;
}

interface Layout {
  readonly name: number;
  readonly middle: number;
  readonly steps: number;
  readonly reward: number;
  /** The end of the longest item, which scales the bars. */
  readonly longest: bigint;
}

function layOut(rows: readonly Row[], options: DrawingOptions): Layout {
  const { columns, beside, noun } = options;
  const widest = (least: string, text: (item: TreeItem) => string) =>
    rows.reduce((width, { item }) => Math.max(width, text(item).length), least.length);
  const steps = widest('steps', stepsText);
  const reward = widest('reward', rewardText);
  const status = widest('completed', (item) => item.status);
  const room = columns - steps - reward - status - 4;
  const names = rows.reduce((width, row) => Math.max(width, titleWidth(row, options)), noun.length);
  const name = Math.min(
    names,
    beside === 'ids' ? room - ID_COLUMNS : Math.max(NAME_COLUMNS_BESIDE_BARS, Math.floor(room / 3)),
  );
  const longest = rows.reduce((most, { item }) => ((item.steps ?? 0n) > most ? (item.steps ?? 0n) : most), 1n);
  return { name: Math.max(1, name), middle: beside === 'ids' ? ID_COLUMNS : room - name, steps, reward, longest };
}

interface Cells {
  readonly name: string;
  readonly middle: string;
  readonly steps: string;
  readonly reward: string;
  readonly status: string;
}

function line(layout: Layout, cells: Cells): [string, string, string, string, string] {
  return [
    fill(cells.name, layout.name),
    fill(cells.middle, layout.middle),
    cells.steps.padStart(layout.steps),
    cells.reward.padStart(layout.reward),
    cells.status,
  ];
}

function drawRow(row: Row, layout: Layout, options: DrawingOptions): string {
  const { item } = row;
  const { beside, paint } = options;
  const stem = stemOf(row, layout.name);
  const [name, middle, steps, reward] = line(
    { ...layout, name: Math.max(1, layout.name - widthOf(stem)) },
    {
      name: titleOf(item, options),
      middle: beside === 'ids' ? item.id : bar(item, layout),
      steps: stepsText(item),
      reward: rewardText(item),
      status: item.status,
    },
  );
  const colour = colourOf(item.status, paint);
  const shownMiddle = beside === 'ids' ? paint.dim(middle) : colour(middle);
  const shownName = item.status === 'deleted' ? paint.dim(name) : paint.bold(name);
  return [paint.dim(stem) + shownName, shownMiddle, steps, reward, colour(item.status)].join(' ');
}

/**
 * `│ ├─`: the connecting lines before a name. If they would fill half of the column, the depth is shown as a number.
 */
function stemOf(row: Row, columns: number): string {
  if (row.depth === 0) return '';
  const corner = row.more ? '├─' : '└─';
  if (row.depth * 2 > columns / 2) return cut(`⋯${row.depth}${corner}`, columns - 1);
  let stem = corner;
  for (let above = row.above; above !== undefined && above.depth > 0; above = above.above) {
    stem = (above.more ? '│ ' : '  ') + stem;
  }
  return stem;
}

/** `* @300 lr 0.1`: the star marks the `here` item, and the number is the branch point. */
function titleOf(item: TreeItem, { beside, here }: DrawingOptions): string {
  const point = item.branchPoint === undefined ? '' : `@${item.branchPoint} `;
  return (item.id === here ? '* ' : '') + point + nameOf(item, beside);
}

/** Returns the columns that a full title needs, with the connecting lines before it. */
function titleWidth(row: Row, options: DrawingOptions): number {
  return row.depth * 2 + widthOf(titleOf(row.item, options));
}

/** `   ┗━━━━`: the item's own steps between 0 and the end of the longest item. */
function bar({ branchPoint, steps }: TreeItem, { middle, longest }: Layout): string {
  if (steps === undefined) return '';
  const column = (step: bigint) => Number((step * BigInt(middle)) / longest);
  const from = Math.min(middle - 1, column(branchPoint === undefined ? 0n : branchPoint + 1n));
  const to = Math.max(from + 1, column(steps));
  const own = '━'.repeat(to - from);
  return ' '.repeat(from) + (branchPoint === undefined ? own : `┗${own.slice(1)}`);
}

function nameOf({ name, id }: TreeItem, beside: DrawingOptions['beside']): string {
  if (name !== '') return printable(name);
  return beside === 'ids' ? '–' : `…${id.slice(-12)}`;
}

function stepsText({ steps }: TreeItem): string {
  return steps === undefined ? '–' : String(steps);
}

function rewardText({ reward }: TreeItem): string {
  return reward === undefined ? '–' : shortNumber(reward);
}

/** Converts trajectories. A deleted trajectory whose steps are still needed is marked as deleted. */
export function trajectoryItems(nodes: readonly TreeNode[]): TreeItem[] {
  return nodes.flatMap(({ trajectory, deleted }) => {
    if (trajectory === undefined) return [];
    const { id, parentId, branchPoint, name, nextStepNumber: steps, rewardSum, status } = trajectory;
    const reward = deleted ? undefined : rewardSum;
    return [{ id, parentId, branchPoint, name, steps, reward, status: deleted ? 'deleted' : statusName(status) }];
  });
}

export function runItems(runs: readonly Run[]): TreeItem[] {
  return runs.map((run) => {
    const { id, parentId, branchPoint, name, nextStepNumber: steps, rewardSum: reward } = run;
    return { id, parentId, branchPoint, name, steps, reward, status: runStatus(run) };
  });
}
