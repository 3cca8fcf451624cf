/** Draws a list of runs, one line each: name, id, experiment, progress, time left, rollouts, reward, status. */
import type { RunWithProgress } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { counted, cut, fill, type Paint, printable, shortNumber, widthOf } from './columns.ts';
import { leftText, percentText, progressBar } from './progress.ts';
import { colourOf, runStatus } from './status.ts';

interface RunsTableOptions {
  /** Maximum width of a line. */
  readonly columns: number;
  readonly paint: Paint;
  /** Shows the experiment of each run. */
  readonly withExperiment: boolean;
  /** Shows ids at any width. If the other columns do not fit beside them, shows only name, id, progress and status. */
  readonly withIds: boolean;
}

const BAR_COLUMNS = 10;
const NAME_LEAST_COLUMNS = 15;
const MOST_COLUMNS: Partial<Record<Column, number>> = { experiment: 20, progress: 16, percent: 12, rollouts: 13 };

/** Returns the lines, without line ends. The first line is a heading. */
export function runsTable(runs: readonly RunWithProgress[], options: RunsTableOptions): string[] {
  const { paint } = options;
  const rows = runs.flatMap((each) => cellsOf(each) ?? []);
  const layout = layOut(rows, options);
  return [
    paint.dim(drawLine(HEADING, layout).join(' ').trimEnd()),
    ...rows.map((row) => {
      const cells = drawLine(row, layout);
      const [name = '', ...rest] = cells.slice(0, -1);
      return [paint.bold(name), ...rest, colourOf(row.status, paint)(row.status)].join(' ');
    }),
  ];
}

/** The text of each column. */
interface Cells {
  readonly name: string;
  readonly id: string;
  readonly experiment: string;
  /** A bar with a percentage, or a count if the run has no plan. */
  readonly progress: string;
  /** The percentage without the bar. */
  readonly percent: string;
  readonly left: string;
  readonly rollouts: string;
  readonly reward: string;
  readonly status: string;
}

type Column = keyof Cells;

const HEADING: Cells = {
  name: 'run',
  id: 'id',
  experiment: 'experiment',
  progress: 'progress',
  percent: 'progress',
  left: 'left',
  rollouts: 'rollouts',
  reward: 'reward',
  status: 'status',
};

const ALL: readonly Column[] = ['name', 'id', 'experiment', 'progress', 'left', 'rollouts', 'reward', 'status'];
const WITHOUT_IDS = ALL.filter((column) => column !== 'id');
const BESIDE_IDS: readonly Column[] = ['name', 'id', 'percent', 'status'];
/** Columns that are omitted if they are empty for every run. */
const OPTIONAL: ReadonlySet<Column> = new Set(['rollouts', 'reward']);
const RIGHT_ALIGNED: ReadonlySet<Column> = new Set(['left', 'rollouts', 'reward']);

function cellsOf({ run, progress }: RunWithProgress): Cells | undefined {
  if (run === undefined) return undefined;
  return {
    name: printable(run.name),
    id: run.id,
    experiment: printable(run.experimentName),
    progress: progressCell(run.nextStepNumber, progress, BAR_COLUMNS),
    percent: progressCell(run.nextStepNumber, progress, 0).trimStart(),
    left: (progress === undefined ? undefined : leftText(progress)) ?? '',
    rollouts: rolloutsCell(progress),
    reward: run.rewardSum === undefined ? '' : shortNumber(run.rewardSum),
    status: runStatus(run),
  };
}

function progressCell(steps: bigint | undefined, progress: RunWithProgress['progress'], bar: number): string {
  if (progress?.percent !== undefined) return `${progressBar(progress.percent, bar)} ${percentText(progress.percent)}`;
  if (steps !== undefined) return counted(steps, 'step');
  const stages = progress?.kinds.reduce((sum, { created }) => sum + created, 0n) ?? 0n;
  return stages === 0n ? '' : counted(stages, 'stage');
}

/** `12/32`: ended rollouts, and expected ones. */
function rolloutsCell(progress: RunWithProgress['progress']): string {
  const kinds = progress?.kinds ?? [];
  const expected = kinds.reduce((sum, { rolloutsExpected }) => sum + rolloutsExpected, 0n);
  return expected === 0n
    ? ''
    : `${kinds.reduce((sum, { rolloutsTerminal }) => sum + rolloutsTerminal, 0n)}/${expected}`;
}

/** The visible columns from left to right, with their widths. */
type Layout = ReadonlyMap<Column, number>;

/** Shows ids if all names fit beside them, or on request. */
function layOut(rows: readonly Cells[], options: RunsTableOptions): Layout {
  const full = measure(ALL, rows, options);
  const least = options.withIds ? NAME_LEAST_COLUMNS : Number.POSITIVE_INFINITY;
  const isUncut = (column: Column) =>
    (full.get(column) ?? least) >= Math.min(widest(column, rows), MOST_COLUMNS[column] ?? least);
  if (isUncut('name') && isUncut('experiment')) return full;
  return measure(options.withIds ? BESIDE_IDS : WITHOUT_IDS, rows, options);
}

/** Names get the room that the other columns leave; experiments get at most half of it. */
function measure(candidates: readonly Column[], rows: readonly Cells[], options: RunsTableOptions): Layout {
  const shown = candidates.filter((column) => {
    if (column === 'experiment') return options.withExperiment;
    return !OPTIONAL.has(column) || rows.some((row) => row[column] !== '');
  });
  const widths = new Map(
    shown.map((column) => [column, Math.min(widest(column, rows), MOST_COLUMNS[column] ?? Number.POSITIVE_INFINITY)]),
  );
  const fixed = shown.filter((column) => column !== 'name' && column !== 'experiment');
  const room = options.columns - fixed.reduce((sum, column) => sum + widths.get(column)!, shown.length - 1);
  const experiment = Math.min(widths.get('experiment') ?? 0, Math.floor(room / 2));
  if (widths.has('experiment')) widths.set('experiment', experiment);
  return widths.set('name', Math.max(1, Math.min(widest('name', rows), room - experiment)));
}

function widest(column: Column, rows: readonly Cells[]): number {
  return rows.reduce((width, row) => Math.max(width, widthOf(row[column])), HEADING[column].length);
}

function drawLine(cells: Cells, layout: Layout): string[] {
  return [...layout].map(([column, width]) => {
    if (column === 'status') return cells.status;
    const text = cut(cells[column], width);
    return RIGHT_ALIGNED.has(column) ? ' '.repeat(width - widthOf(text)) + text : fill(text, width);
  });
}
