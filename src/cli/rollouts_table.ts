/** Draws rollouts below their groups, and groups below their stages: turns, reward, verdict, status. */
import type { Group, GroupStatistics, Rollout } from '../../gen/es/anabranch/v1/rollout_pb.js';
import type { Stage } from '../../gen/es/anabranch/v1/run_pb.js';
import { cut, fill, type Paint, printable, shortNumber, widthOf } from './columns.ts';
import { stageTitle } from './stage_lines.ts';
import { colourOf, statusName } from './status.ts';

/** A stage with its listed groups and rollouts. */
export interface RolloutParts {
  readonly stage: Stage;
  /** Groups by number. Groups without listed rollouts may be missing. */
  readonly groups: readonly Group[];
  /** Whether every group of the stage is in `groups`. */
  readonly allGroups: boolean;
  /** Rollouts by group number, then by number. Empty: groups are listed without their rollouts. */
  readonly rollouts: readonly Rollout[];
}

interface RolloutsTableOptions {
  /** Maximum width of a line. */
  readonly columns: number;
  readonly paint: Paint;
}

const INDENT = '  ';
const SUCCESS_COLUMNS = 5;
const STATUS_LEAST_COLUMNS = 12;
const NOTE_LEAST_COLUMNS = 10;

/** Returns the lines, without line ends. The first line is a heading. */
export function rolloutsTable(parts: readonly RolloutParts[], options: RolloutsTableOptions): string[] {
  const { columns, paint } = options;
  const rows = parts.flatMap((part) => [stageRow(part), ...groupRows(part)]);
  const heading = row('', { tries: 'try', turns: 'turns', reward: 'reward', success: 'ok', status: 'status' });
  const widest = (of: (cells: Row) => string) =>
    [heading, ...rows].reduce((width, cells) => Math.max(width, widthOf(of(cells))), 0);
  const widths = {
    tries: rows.some(({ tries }) => tries !== '') ? widest(({ tries }) => tries) : 0,
    turns: widest(({ turns }) => turns),
    reward: widest(({ reward }) => reward),
  };
  const numbers = widths.turns + widths.reward + SUCCESS_COLUMNS + (widths.tries === 0 ? 0 : widths.tries + 1) + 4;
  const title = Math.min(
    widest(({ title }) => title),
    columns - numbers - STATUS_LEAST_COLUMNS,
  );
  const status = columns - numbers - title;
  const line = (cells: Row) => {
    const shown = fill(cells.title, title);
    const statusCell = statusText(cells, status);
    return [
      cells.bold ? paint.bold(shown) : shown,
      ...(widths.tries === 0 ? [] : [cells.tries.padStart(widths.tries)]),
      cells.turns.padStart(widths.turns),
      cells.reward.padStart(widths.reward),
      cells.success.padStart(SUCCESS_COLUMNS),
      cells === heading ? statusCell : colourOf(cells.statusWord, paint)(statusCell),
    ]
      .join(' ')
      .trimEnd();
  };
  return [paint.dim(line(heading)), ...rows.map(line)];
}

/** The status message is left out if almost nothing of it would be visible. */
function statusText({ status, statusWord }: Row, columns: number): string {
  const readable = widthOf(status) <= columns || columns >= widthOf(statusWord) + NOTE_LEAST_COLUMNS;
  return cut(readable ? status : statusWord || status, columns);
}

interface Row {
  readonly title: string;
  readonly bold: boolean;
  readonly tries: string;
  readonly turns: string;
  readonly reward: string;
  readonly success: string;
  readonly status: string;
  /** The word that the colour depends on. */
  readonly statusWord: string;
}

function row(title: string, more: Partial<Row>): Row {
  return {
    title,
    bold: false,
    tries: '',
    turns: '',
    reward: '',
    success: '',
    status: '',
    statusWord: '',
    ...more,
  };
}

/** Shows means over all groups, if all groups are known. */
function stageRow({ stage, groups, allGroups }: RolloutParts): Row {
  const status = statusName(stage.status);
  const all = allGroups ? totalsOf(groups.flatMap(({ statistics }) => statistics ?? [])) : {};
  const notes = [status, stage.phase].filter((part) => part !== '').join(', ');
  return row(stageTitle(stage), { bold: true, ...all, status: printable(notes), statusWord: status });
}

function totalsOf(statistics: readonly GroupStatistics[]): Pick<Row, 'reward' | 'success'> {
  const sum = (of: (each: GroupStatistics) => bigint) =>
    Number(statistics.reduce((total, each) => total + of(each), 0n));
  const rewards = sum(({ rewardCount }) => rewardCount);
  const total = statistics.reduce(
    (all, { rewardMean, rewardCount }) => all + (rewardMean ?? 0) * Number(rewardCount),
    0,
  );
  const judged = sum(({ judgedCount }) => judgedCount);
  return {
    reward: rewards === 0 ? '' : shortNumber(total / rewards),
    success: judged === 0 ? '' : rateText(sum(({ successCount }) => successCount) / judged),
  };
}

function groupRows({ groups, rollouts, allGroups }: RolloutParts): Row[] {
  if (rollouts.length === 0) {
    const more = allGroups ? [] : [row(`${INDENT}… more groups`, {})];
    return [...groups.map((group) => groupRow(group.number, group, [])), ...more];
  }
  return [...Map.groupBy(rollouts, ({ groupNumber }) => groupNumber)].flatMap(([number, own]) => {
    const group = groups.find((each) => each.number === number);
    return [groupRow(number, group, own), ...own.map(rolloutRow)];
  });
}

/** `group 3  cartpole, 2 of 4, ±12.5`, with the mean reward and the success rate of the ended rollouts. */
function groupRow(number: bigint, group: Group | undefined, rollouts: readonly Rollout[]): Row {
  const { statistics } = group ?? {};
  const notes = [
    taskText(rollouts),
    ...(statistics === undefined ? [] : [endedText(statistics), spreadText(statistics)]),
  ];
  const title = `${INDENT}group ${number}  ${notes.filter((note) => note !== '').join(', ')}`;
  const status = group === undefined ? '' : statusName(group.status);
  return row(printable(title).trimEnd(), {
    bold: true,
    reward: statistics?.rewardMean === undefined ? '' : shortNumber(statistics.rewardMean),
    success: statistics?.successRate === undefined ? '' : rateText(statistics.successRate),
    status,
    statusWord: status,
  });
}

/** The task of all rollouts. Empty if they have several tasks, or none. */
function taskText([first, ...others]: readonly Rollout[]): string {
  return first !== undefined && others.every(({ taskId }) => taskId === first.taskId) ? first.taskId : '';
}

function endedText({ rolloutCount, completedCount, failedCount, cancelledCount }: GroupStatistics): string {
  const ended = completedCount + failedCount + cancelledCount;
  return ended === rolloutCount ? '' : `${ended} of ${rolloutCount} ended`;
}

/** The standard deviation, if the group has one. */
function spreadText({ rewardStd }: GroupStatistics): string {
  return rewardStd === undefined ? '' : `±${shortNumber(Number(rewardStd.toPrecision(3)))}`;
}

/** ` 75 %`: whole percents. Shows 100 only if all succeeded. */
export function rateText(rate: number): string {
  return `${rate < 1 ? Math.min(99, Math.round(rate * 100)) : 100} %`;
}

/** `yes`, `no`, or empty without a verdict. */
export function verdictText(success: boolean | undefined): string {
  return success === undefined ? '' : success ? 'yes' : 'no';
}

function rolloutRow(rollout: Rollout): Row {
  const { id, number, attempt, turns, reward, success, phase, statusMessage } = rollout;
  const status = statusName(rollout.status);
  const notes = [status, phase, statusMessage].filter((part) => part !== '').join(', ');
  return row(printable(`${INDENT}${INDENT}${number} ${id}`), {
    tries: attempt > 1 ? String(attempt) : '',
    turns: attempt === 0 ? '' : String(turns),
    reward: reward === undefined ? '' : shortNumber(reward),
    success: verdictText(success),
    status: printable(notes),
    statusWord: status,
  });
}
