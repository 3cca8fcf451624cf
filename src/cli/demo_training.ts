/**
 * Shows the demo's training: bars with the remaining time on a terminal, lines elsewhere, JSON for scripts. Then shows
 * its summary.
 */
import type { SingleBar } from 'cli-progress';
import type { Estimate, Summary } from '../../gen/es/anabranch/v1/run_service_pb.js';
import type { TrainingEvent } from '../demo/events.ts';
import type { TrainingResult } from '../demo/training.ts';
import { cut, fill, type Paint, shortNumber } from './columns.ts';
import type { Output } from './context.ts';
import { type DemoDisplay, eventJson, logAbove, NAME_COLUMNS, openBars } from './demo_display.ts';
import { durationText } from './progress_text.ts';
import { rateText } from './rollouts_table.ts';

type Progress = Extract<TrainingEvent, { event: 'progress' }>;

export function jsonTraining(output: Output): DemoDisplay<TrainingEvent> {
  return { show: (event) => void output.write(`${eventJson(event)}\n`), stop() {} };
}

/** Prints a line for each important event, and for each tenth of the progress. */
export function lineTraining(output: Output, paint: Paint): DemoDisplay<TrainingEvent> {
  let printedTenths = 0;
  return {
    show(event) {
      if (event.event === 'progress') {
        const tenth = Math.floor(event.percent / 10);
        if (tenth <= printedTenths) return;
        printedTenths = tenth;
      }
      for (const line of linesOf(event, paint)) output.write(`${line}\n`);
    },
    stop() {},
  };
}

/** Shows a bar for the run, and one for each of its stages. */
export function barTraining(output: Output, paint: Paint, columns: number): DemoDisplay<TrainingEvent> {
  const bars = openBars(output);
  const byName = new Map<string, SingleBar>();
  let stopped = false;
  const draw = (name: string, percent: number, note: string) => {
    const bar = byName.get(name) ?? bars.create(100, 0, { name: fill(name, NAME_COLUMNS), note: '' });
    byName.set(name, bar);
    bar.update(Math.floor(percent), { note: paint.dim(cut(note, columns - NAME_COLUMNS - 36)) });
  };
  return {
    show(event) {
      if (event.event !== 'progress') return logAbove(bars, linesOf(event, paint));
      draw(event.name, event.percent, shortNoteOf(event));
      for (const { name, percent } of event.stages) draw(name, percent, '');
    },
    stop() {
      if (stopped) return;
      stopped = true;
      bars.update();
      bars.stop();
    },
  };
}

/** `7 of 20 rollouts, 3 s left` */
function noteOf({ rolloutsDone, rolloutsExpected, remainingSeconds }: Progress): string {
  const left = remainingSeconds === undefined ? '' : `, ${durationText(remainingSeconds)} left`;
  return `${rolloutsDone} of ${rolloutsExpected} rollouts${left}`;
}

/** `3 s left, 7/20 rollouts`: the note on the right of a bar. */
function shortNoteOf({ rolloutsDone, rolloutsExpected, remainingSeconds }: Progress): string {
  const left = remainingSeconds === undefined ? '' : `${durationText(remainingSeconds)} left, `;
  return `${left}${rolloutsDone}/${rolloutsExpected} rollouts`;
}

function linesOf(event: TrainingEvent, paint: Paint): string[] {
  const line = (text: string) => [`  ${paint.bold(event.name)}: ${text}`];
  switch (event.event) {
    case 'run':
      return line(`run ${event.runId}, of ${event.experimentName}`);
    case 'progress':
      return line(`${Math.floor(event.percent)} %, ${noteOf(event)}`);
    case 'worker':
      return line(`process ${event.pid} claims rollouts`);
    case 'worker_killed':
      return line(`process ${event.pid} killed (SIGKILL) after ${event.turns} turns of a rollout`);
    case 'claimed_again':
      return line(`claimed that rollout again, as attempt ${event.attempt}`);
    case 'stage':
      return line(`policy ${event.version} came to a mean reward of ${shortNumber(event.rewardMean)}`);
  }
}

/** Draws a line per policy with the result of Summarize for its rollouts. */
export function summaryTable({ summaries }: TrainingResult, columns: number): string[] {
  const row = (cells: readonly [string, string, string, string, string]) =>
    cut(
      [
        fill(cells[0], NAME_COLUMNS),
        cells[1].padStart(8),
        cells[2].padStart(15),
        cells[3].padStart(16),
        cells[4].padStart(7),
      ].join(' '),
      columns,
    ).trimEnd();
  return [
    row(['policy', 'rollouts', 'reward', 'success (95 %)', 'pass@4']),
    ...summaries.map((summary) =>
      row([
        nameOf(summary),
        String(summary.rolloutCount),
        rewardText(summary),
        summary.successRate === undefined ? '–' : estimateText(summary.successRate),
        passText(summary, 4),
      ]),
    ),
  ];
}

/** `1, train step` */
function nameOf({ values: [policy = '', kind = ''] }: Summary): string {
  return `${policy}, ${kind.toLowerCase().replaceAll('_', ' ')}`;
}

function rewardText({ rewardMean, rewardStd }: Summary): string {
  if (rewardMean === undefined) return '–';
  return `${rewardMean.toFixed(1)}${rewardStd === undefined ? '' : ` ±${rewardStd.toFixed(1)}`}`;
}

/** `75 % (30–95)` */
function estimateText({ value, low, high }: Estimate): string {
  if (low === undefined || high === undefined) return rateText(value);
  return `${rateText(value)} (${Math.round(low * 100)}–${Math.round(high * 100)})`;
}

/** pass@k counts tasks with at least k tries. */
function passText({ passAt }: Summary, k: number): string {
  const estimate = passAt.find((each) => each.k === k)?.estimate;
  return estimate === undefined ? '–' : rateText(estimate.value);
}
