/** Formats a live run as words and bars. */
import type { Progress, Run, Stage } from '../../gen/es/anabranch/v1/run_pb.js';
import type { RunPicture } from '../client/index.ts';
import { cut, fill, numbersText, type Paint, printable, widthOf } from './columns.ts';
import { countsText, kindsText, leftText, percentText, progressBar, workText } from './progress_text.ts';
import { drawStages, noteOf } from './stage_lines.ts';
import { colourOf, isTerminal, runStatus, statusName } from './status.ts';
import { groupLines } from './watch_rollouts.ts';

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
