/** Formats a live run as words and bars. */
import type { Group, Rollout } from '../../gen/es/anabranch/v1/rollout_pb.js';
import type { Progress, Run, Stage } from '../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import type { RunPicture } from '../client/index.ts';
import { counted, cut, fill, numbersText, type Paint, printable, shortNumber, widthOf } from './columns.ts';
import { countsText, kindsText, leftText, percentText, progressBar, workText } from './progress.ts';
import { rateText, verdictText } from './rollouts_table.ts';
import { drawStages, noteOf, stageTitle } from './stage_lines.ts';
import { colourOf, isTerminal, runStatus, statusName } from './status.ts';

/** `running, training, loss=0.41` */
export function runText(run: Run): string {
  const parts = [runStatus(run), run.phase, run.statusMessage, numbersText(run.metrics)];
  return printable(parts.filter((part) => part !== '').join(', '));
}

export function stageText(stage: Stage): string {
  const note = noteOf(stage);
  return statusName(stage.status) + (note === '' ? '' : `, ${note}`);
}

/** Omits the remaining time, so that a text that did not change is not printed again. */
export function progressText(progress: Progress): string {
  const percent = progress.percent === undefined ? '' : percentText(progress.percent).trimStart();
  return [percent, countsText(progress)].filter((part) => part !== '').join(', ');
}

const MOST_STAGES = 10;
const BAR_COLUMNS = 40;

/**
 * Draws the picture. It must fit the terminal to be redrawn in place, so lines are cut to the width and their number is
 * limited.
 */
export function screenLines(
  { run, stages, groups, rollouts, progress }: RunPicture,
  { columns, paint }: { readonly columns: number; readonly paint: Paint },
): string[] {
  const status = runStatus(run);
  const title = fill(printable(run.name), columns - widthOf(status) - 1);
  const open = [...stages.values()]
    .filter((stage) => !isTerminal(stage.status))
    .sort((a, b) => a.kind - b.kind || Number(a.number - b.number));
  const shown = open.slice(0, MOST_STAGES);
  const more = open.length - shown.length;
  const note = printable(
    [run.phase, run.statusMessage, numbersText(run.metrics)].filter((part) => part !== '').join(', '),
  );
  return [
    `${paint.bold(title)} ${colourOf(status, paint)(status)}`,
    ...(note === '' ? [] : [cut(note, columns)]),
    ...barLines(progress, { columns, paint }),
    ...drawStages(shown, progress, { columns: columns - 2, paint }).map((line) => `  ${line}`),
    ...(more > 0 ? [`  … ${more} more`] : []),
    ...groupLines({ stages, groups, rollouts }, { columns, paint }),
  ];
}

function barLines(
  progress: Progress,
  { columns, paint }: { readonly columns: number; readonly paint: Paint },
): string[] {
  const { percent } = progress;
  const left = leftText(progress);
  const bar =
    percent === undefined
      ? ''
      : `${paint.cyan(progressBar(percent, BAR_COLUMNS))} ${percentText(percent)}${left === undefined ? '' : `  ${left} left`}`;
  const counts = countsText(progress);
  const lines = widthOf(counts) <= columns ? [counts] : [workText(progress), kindsText(progress)];
  return [bar, ...lines.map((line) => cut(line, columns))].filter((line) => line !== '');
}

export function stageTitleIn(stages: RunPicture['stages'], stageId: string): string {
  const stage = stages.get(stageId);
  if (stage === undefined) throw new Error(`the watched picture has a group of stage ${stageId}, but not the stage`);
  return stageTitle(stage);
}

/** `train step 1, rollout 0/3`: group number, then rollout number. */
export function rolloutTitle({ groupNumber, number }: Rollout, stage: string): string {
  return `${stage}, rollout ${groupNumber}/${number}`;
}

/** Omits the turns of a live rollout, because they change with every message. */
export function rolloutText(rollout: Rollout): string {
  const { status, attempt, workerId, phase, statusMessage, reward, success, turns } = rollout;
  const ended = isTerminal(status);
  const parts = [
    statusName(status),
    attempt > 1 ? `attempt ${attempt}` : '',
    ended || workerId === '' ? '' : `by ${workerId}`,
    phase,
    statusMessage,
    ended && attempt > 0 ? counted(turns, 'turn') : '',
    ended && reward !== undefined ? `reward ${shortNumber(reward)}` : '',
    ended && success !== undefined ? `success: ${verdictText(success)}` : '',
  ];
  return printable(parts.filter((part) => part !== '').join(', '));
}

export function groupTitle({ number }: Group, stage: string): string {
  return `${stage}, group ${number}`;
}

/** Empty until the group has ended, because its rollouts report until then. */
export function groupText(group: Group): string {
  return isTerminal(group.status) ? [statusName(group.status), ...notesOf(group)].join(', ') : '';
}

function notesOf({ statistics }: Group): string[] {
  const { rewardMean, rewardStd, successRate } = statistics ?? {};
  const spread = rewardStd === undefined ? '' : ` ±${shortNumber(Number(rewardStd.toPrecision(3)))}`;
  return [
    rewardMean === undefined ? '' : `mean reward ${shortNumber(rewardMean)}${spread}`,
    successRate === undefined ? '' : `${rateText(successRate)} ok`,
  ].filter((note) => note !== '');
}

const MOST_GROUPS = 6;
const MOST_MARKS = 32;

/**
 * Draws a line per group of the open stages, with a mark per rollout. Draws only as many groups as fit the terminal.
 */
function groupLines(
  { stages, groups, rollouts }: Pick<RunPicture, 'stages' | 'groups' | 'rollouts'>,
  { columns, paint }: { readonly columns: number; readonly paint: Paint },
): string[] {
  const open = [...groups.values()].filter(
    ({ stageId }) => !isTerminal(stages.get(stageId)?.status ?? Status.UNSPECIFIED),
  );
  const ordered = open.sort(
    (a, b) => Number(isTerminal(a.status)) - Number(isTerminal(b.status)) || Number(a.number - b.number),
  );
  const shown = ordered.slice(0, MOST_GROUPS);
  const siblings = Map.groupBy(rollouts.values(), ({ groupId }) => groupId);
  const title = shown.reduce((width, group) => Math.max(width, widthOf(titleOf(group, stages))), 0);
  const more = ordered.length - shown.length;
  return [
    ...shown.map((group) => {
      const own = (siblings.get(group.id) ?? []).toSorted((a, b) => Number(a.number - b.number));
      const marks = own.slice(0, MOST_MARKS).map(markOf);
      const drawn = marks.map(({ mark, success }) =>
        success === undefined ? mark : success ? paint.green(mark) : paint.red(mark),
      );
      const notes = [...(own.length > MOST_MARKS ? [`${own.length} in all`] : []), ...notesOf(group)].join(', ');
      const room = columns - title - marks.length - 6;
      return `  ${fill(titleOf(group, stages), title)}  ${drawn.join('')}  ${cut(notes, room)}`.trimEnd();
    }),
    ...(more > 0 ? [`  … ${more} more groups`] : []),
  ];
}

function titleOf(group: Group, stages: RunPicture['stages']): string {
  return groupTitle(group, stageTitleIn(stages, group.stageId));
}

/** `✓` succeeded, `✗` did not succeed, `●` ended without a verdict, `-` cancelled, `▸` live, `·` pending. */
function markOf({ status, success }: Rollout): { readonly mark: string; readonly success: boolean | undefined } {
  if (status === Status.CANCELLED) return { mark: '-', success: undefined };
  if (status === Status.FAILED) return { mark: '✗', success: false };
  if (status === Status.COMPLETED) return { mark: success === undefined ? '●' : success ? '✓' : '✗', success };
  return { mark: status === Status.PENDING ? '·' : '▸', success: undefined };
}
