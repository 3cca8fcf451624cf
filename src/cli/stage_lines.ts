/** Draws a line per stage of a run: name, progress, duration, status and notes. */
import type { Progress, Stage } from '../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { cut, fill, numbersText, type Paint, printable, widthOf } from './columns.ts';
import { countText, percentText, tookText } from './progress.ts';
import { colourOf, isTerminal, kindName, statusName } from './status.ts';

interface Stages {
  /** Stages in order of creation. */
  readonly stages: readonly Stage[];
  /** Whether the run has older stages. */
  readonly earlierStages: boolean;
  readonly progress: Progress | undefined;
}

interface Options {
  /** Maximum width of a line. */
  readonly columns: number;
  readonly paint: Paint;
  /** Maximum number of stages; the newest are shown. */
  readonly stages: number;
}

const TOOK_COLUMNS = 6;

export function stageLines({ stages, earlierStages, progress }: Stages, options: Options): string[] {
  const shown = options.stages === 0 ? [] : stages.slice(-options.stages);
  if (shown.length === 0) return [];
  const hidden = stages.length - shown.length;
  const lines = drawStages(shown, progress, options);
  if (hidden === 0 && !earlierStages) return lines;
  const before = hidden === 0 ? 'More' : `${hidden}${earlierStages ? ' or more' : ''}`;
  return [`… ${before} before; --stages N (up to 1000) shows more`, ...lines];
}

/** Draws the stages without a heading. Each line is self-explanatory. */
export function drawStages(
  stages: readonly Stage[],
  progress: Progress | undefined,
  { columns, paint }: Pick<Options, 'columns' | 'paint'>,
): string[] {
  const widest = (text: (stage: Stage) => string) =>
    stages.reduce((width, stage) => Math.max(width, widthOf(text(stage))), 0);
  const [title, status] = [widest(stageTitle), widest((stage) => statusName(stage.status))];
  const room = columns - title - status - TOOK_COLUMNS - 5 - 4;
  return stages.map((stage) => {
    const name = statusName(stage.status);
    const took = tookText(stage.startTime, stage.endTime) ?? '';
    return [
      paint.bold(fill(stageTitle(stage), title)),
      percentOf(stage, progress),
      took.padStart(TOOK_COLUMNS),
      colourOf(name, paint)(fill(name, status)),
      cut(joined([rolloutsNote(stage, progress), noteOf(stage)]), room),
    ]
      .join(' ')
      .trimEnd();
  });
}

/** `train step 12` */
export function stageTitle({ kind, number }: Pick<Stage, 'kind' | 'number'>): string {
  return `${kindName(kind)} ${number}`;
}

function percentOf({ id, status }: Stage, progress: Progress | undefined): string {
  const open = progress?.openStages.find(({ stageId }) => stageId === id);
  const percent = status === Status.COMPLETED ? 100 : open?.percent;
  return percent === undefined ? '     ' : percentText(percent);
}

/** `3 of 8 rollouts`. Empty unless the stage is open. */
function rolloutsNote({ id }: Stage, progress: Progress | undefined): string {
  const open = progress?.openStages.find(({ stageId }) => stageId === id);
  return open === undefined ? '' : countText(open.rolloutsTerminal, open.rolloutsExpected, 'rollouts');
}

/** `training, 3 of 10 substeps, loss=0.41`: the notes of a stage, the most important first. */
export function noteOf(stage: Stage): string {
  const { phase, statusMessage, completedSubsteps, totalSubsteps = 0n, metrics, modelCheckpointUri } = stage;
  const parts = [
    phase,
    statusMessage,
    queueNote(stage),
    countText(completedSubsteps, totalSubsteps, 'substeps'),
    numbersText(metrics),
    modelCheckpointUri,
  ];
  return printable(joined(parts));
}

/** Empty for a terminal stage, because its queue is always closed. */
function queueNote({ status, queueCloseTime }: Stage): string {
  return queueCloseTime === undefined || isTerminal(status) ? '' : 'queue closed';
}

function joined(parts: readonly string[]): string {
  return parts.filter((part) => part !== '').join(', ');
}
