/** Draws a tree of trajectories: a line each, a parent above its branches, never wider than asked for. */
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import type { Trajectory } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type { TreeNode } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { cut, fill, type Paint, printable, shortNumber, widthOf } from './columns.ts';

export interface DrawingOptions {
  /** No line is wider. */
  readonly columns: number;
  /** What stands beside the names: ids, to go on with, or bars that show which steps are whose. */
  readonly beside: 'ids' | 'bars';
  readonly paint: Paint;
}

const ID_COLUMNS = 36;
const STATUS_COLUMNS = 9;
const NAME_COLUMNS_BESIDE_BARS = 24;

/** The lines, without line ends; a heading first. */
export function drawTree(nodes: readonly TreeNode[], options: DrawingOptions): string[] {
  const rows = [...walk(nodes)];
  const { paint, beside } = options;
  const layout = layOut(rows, options);
  const heading = line(layout, {
    name: beside === 'ids' ? 'trajectory' : '',
    middle: beside === 'ids' ? 'id' : '',
    steps: 'steps',
    reward: 'reward',
    status: 'status',
  });
  return [paint.dim(heading.join(' ').trimEnd()), ...rows.map((row) => drawRow(row, layout, options))];
}

interface Row {
  readonly node: TreeNode;
  readonly trajectory: Trajectory;
  /** 0 for the root. */
  readonly depth: number;
  /** Do more branches of the same parent follow further down? Then a line passes by everything between. */
  readonly more: boolean;
  readonly above: Row | undefined;
}

/** Depth first, a parent before its branches, those in order of branch point, then of creation. Trees may be deeper than the stack. */
function* walk(nodes: readonly TreeNode[]): Generator<Row> {
  const known = new Set(nodes.map((node) => node.trajectory?.id));
  const branches = Map.groupBy(nodes, ({ trajectory }) =>
    trajectory !== undefined && known.has(trajectory.parentId) ? trajectory.parentId : '',
  );
  const waiting: Row[] = [];
  const push = (parentId: string, above: Row | undefined) => {
    const siblings = [...(branches.get(parentId) ?? [])].sort(byBranchPoint).reverse();
    siblings.forEach((node, i) => {
      const { trajectory } = node;
      if (trajectory === undefined) return;
      waiting.push({ node, trajectory, depth: above === undefined ? 0 : above.depth + 1, more: i > 0, above });
    });
  };
  push('', undefined);
  for (let row = waiting.pop(); row !== undefined; row = waiting.pop()) {
    yield row;
    push(row.trajectory.id, row);
  }
}

function byBranchPoint({ trajectory: a }: TreeNode, { trajectory: b }: TreeNode): number {
  const difference = (a?.branchPoint ?? 0n) - (b?.branchPoint ?? 0n);
  return difference < 0n ? -1 : difference > 0n ? 1 : 0;
}

interface Layout {
  readonly name: number;
  readonly middle: number;
  readonly steps: number;
  readonly reward: number;
  /** The end of the longest: what the bars are scaled to. */
  readonly longest: bigint;
}

function layOut(rows: readonly Row[], { columns, beside }: DrawingOptions): Layout {
  const widest = (least: number, text: (row: Row) => string) =>
    rows.reduce((width, row) => Math.max(width, text(row).length), least);
  const steps = widest('steps'.length, (row) => stepsText(row));
  const reward = widest('reward'.length, (row) => rewardText(row));
  const room = columns - steps - reward - STATUS_COLUMNS - 4;
  const name = beside === 'ids' ? room - ID_COLUMNS : Math.min(NAME_COLUMNS_BESIDE_BARS, Math.floor(room / 2));
  const longest = rows.reduce((most, { trajectory }) => {
    return trajectory.nextStepNumber > most ? trajectory.nextStepNumber : most;
  }, 1n);
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

function drawRow(row: Row, layout: Layout, { beside, paint }: DrawingOptions): string {
  const { trajectory, node } = row;
  const stem = stemOf(row, layout.name);
  const point = trajectory.branchPoint === undefined ? '' : `@${trajectory.branchPoint} `;
  const status = node.deleted ? 'deleted' : statusName(trajectory.status);
  const [name, middle, steps, reward] = line(
    { ...layout, name: Math.max(1, layout.name - widthOf(stem)) },
    {
      name: point + nameOf(trajectory, beside),
      middle: beside === 'ids' ? trajectory.id : bar(trajectory, layout),
      steps: stepsText(row),
      reward: rewardText(row),
      status,
    },
  );
  const colour = colourOf(status, paint);
  const shownMiddle = beside === 'ids' ? paint.dim(middle) : colour(middle);
  const shownName = node.deleted ? paint.dim(name) : paint.bold(name);
  return [paint.dim(stem) + shownName, shownMiddle, steps, reward, colour(status)].join(' ');
}

/** `│ ├─`: which lines pass and where this one leaves them. Deep down, where it would fill half of the column, the depth in figures. */
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

/** `   ┗━━━━`: where the trajectory's own steps lie between 0 and the end of the longest. */
function bar({ branchPoint, nextStepNumber }: Trajectory, { middle, longest }: Layout): string {
  const column = (step: bigint) => Number((step * BigInt(middle)) / longest);
  const from = Math.min(middle - 1, column(branchPoint === undefined ? 0n : branchPoint + 1n));
  const to = Math.max(from + 1, column(nextStepNumber));
  const own = '━'.repeat(to - from);
  return ' '.repeat(from) + (branchPoint === undefined ? own : `┗${own.slice(1)}`);
}

function nameOf({ name, id }: Trajectory, beside: DrawingOptions['beside']): string {
  if (name !== '') return printable(name);
  return beside === 'ids' ? '–' : `…${id.slice(-12)}`;
}

function stepsText({ trajectory }: Row): string {
  return String(trajectory.nextStepNumber);
}

function rewardText({ trajectory, node }: Row): string {
  return node.deleted ? '–' : shortNumber(trajectory.rewardSum);
}

/** `completed`: the status in lower case. */
export function statusName(status: Status): string {
  return (Status[status] ?? 'unknown').toLowerCase();
}

function colourOf(status: string, paint: Paint): (text: string) => string {
  if (status === 'completed') return paint.green;
  if (status === 'failed') return paint.red;
  if (status === 'cancelled') return paint.yellow;
  if (status === 'deleted') return paint.dim;
  return paint.cyan;
}
