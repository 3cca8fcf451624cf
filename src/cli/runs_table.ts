/** A line for each run: name, experiment, how far, how long still, rollouts, reward, status. */
import type { RunWithProgress } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { cut, fill, type Paint, printable, shortNumber, widthOf } from './columns.ts';
import { leftText, percentText, progressBar } from './progress_text.ts';
import { colourOf, runStatus } from './status.ts';

export interface RunsTableOptions {
  /** No line is wider. */
  readonly columns: number;
  readonly paint: Paint;
  /** Say which experiment each is of. */
  readonly withExperiment: boolean;
}

const BAR_COLUMNS = 10;
const PROGRESS_COLUMNS = BAR_COLUMNS + 1 + 5;
const LEFT_COLUMNS = 6;
const EXPERIMENT_MOST_COLUMNS = 20;
const ROLLOUTS_MOST_COLUMNS = 13;

/** The lines, without line ends; a heading first. */
export function runsTable(runs: readonly RunWithProgress[], options: RunsTableOptions): string[] {
  const { paint } = options;
  const rows = runs.flatMap((each) => cellsOf(each) ?? []);
  const heading: Cells = {
    name: 'run',
    experiment: options.withExperiment ? 'experiment' : '',
    progress: 'progress',
    left: 'left',
    rollouts: rows.some(({ rollouts }) => rollouts !== '') ? 'rollouts' : '',
    reward: rows.some(({ reward }) => reward !== '') ? 'reward' : '',
    status: 'status',
  };
  const widths = layOut([heading, ...rows], options);
  return [
    paint.dim(cellsLine(heading, widths).join(' ').trimEnd()),
    ...rows.map((row) => {
      const [name = '', ...rest] = cellsLine(row, widths);
      const colour = colourOf(row.status, paint);
      return [paint.bold(name), ...rest.slice(0, -1), colour(row.status)].join(' ');
    }),
  ];
}

interface Cells {
  readonly name: string;
  readonly experiment: string;
  readonly progress: string;
  readonly left: string;
  readonly rollouts: string;
  readonly reward: string;
  readonly status: string;
}

function cellsOf({ run, progress }: RunWithProgress): Cells | undefined {
  if (run === undefined) return undefined;
  return {
    name: printable(run.name),
    experiment: printable(run.experimentName),
    progress: farText(run.nextStepNumber, progress),
    left: (progress === undefined ? undefined : leftText(progress)) ?? '',
    rollouts: rolloutsCell(progress),
    reward: run.rewardSum === undefined ? '' : shortNumber(run.rewardSum),
    status: runStatus(run),
  };
}

/** A bar where there is a plan, else what there is to count. */
function farText(steps: bigint | undefined, progress: RunWithProgress['progress']): string {
  if (progress?.percent !== undefined) {
    return `${progressBar(progress.percent, BAR_COLUMNS)} ${percentText(progress.percent)}`;
  }
  if (steps !== undefined) return `${steps} steps`;
  const stages = progress?.kinds.reduce((sum, { made }) => sum + made, 0n) ?? 0n;
  return stages === 0n ? '' : `${stages} stages`;
}

/** `12/32`: ended, and expected in all. */
function rolloutsCell(progress: RunWithProgress['progress']): string {
  const kinds = progress?.kinds ?? [];
  const expected = kinds.reduce((sum, { rolloutsExpected }) => sum + rolloutsExpected, 0n);
  return expected === 0n
    ? ''
    : `${kinds.reduce((sum, { rolloutsTerminal }) => sum + rolloutsTerminal, 0n)}/${expected}`;
}

type Widths = Readonly<Record<keyof Cells, number>>;

function layOut(rows: readonly Cells[], { columns, withExperiment }: RunsTableOptions): Widths {
  const widest = (key: keyof Cells) => rows.reduce((width, row) => Math.max(width, widthOf(row[key])), 0);
  const [status, reward, rollouts] = [
    widest('status'),
    widest('reward'),
    Math.min(widest('rollouts'), ROLLOUTS_MOST_COLUMNS),
  ];
  const gaps = 3 + (withExperiment ? 1 : 0) + (reward > 0 ? 1 : 0) + (rollouts > 0 ? 1 : 0);
  const room = columns - status - reward - rollouts - PROGRESS_COLUMNS - LEFT_COLUMNS - gaps;
  const experiment = withExperiment ? Math.min(widest('experiment'), EXPERIMENT_MOST_COLUMNS, Math.floor(room / 2)) : 0;
  const name = Math.max(1, Math.min(widest('name'), room - experiment));
  return { name, experiment, progress: PROGRESS_COLUMNS, left: LEFT_COLUMNS, rollouts, reward, status };
}

/** Columns that nobody has anything to say in are left out. */
function cellsLine(cells: Cells, widths: Widths): string[] {
  return [
    fill(cells.name, widths.name),
    ...(widths.experiment > 0 ? [fill(cells.experiment, widths.experiment)] : []),
    fill(cells.progress, widths.progress),
    cells.left.padStart(widths.left),
    ...(widths.rollouts > 0 ? [cut(cells.rollouts, widths.rollouts).padStart(widths.rollouts)] : []),
    ...(widths.reward > 0 ? [cells.reward.padStart(widths.reward)] : []),
    cells.status,
  ];
}
