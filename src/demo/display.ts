/** Shows the demo: its events while it runs, as bars on a terminal, lines elsewhere, or JSON; then its tables. */
import type { SingleBar } from 'cli-progress';
import type { Estimate, Summary } from '../../gen/es/anabranch/v1/run_service_pb.js';
import type { CompareTrajectoriesResponse } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { columnsOf, cut, fill, paintFor, shortNumber, valueJson } from '../cli/columns.ts';
import type { CliContext } from '../cli/context.ts';
import { openBars } from '../cli/progress.ts';
import { rateText } from '../cli/rollouts_table.ts';
import type { DemoBar, DemoEvent, Shown } from './events.ts';

const NAME_COLUMNS = 21;
const CLEAR_TO_END = '\u001b[K';

export function openDisplay({ stdout, env }: CliContext, json: boolean) {
  if (json) {
    const show = (event: DemoEvent) => {
      // Scripts get every fiftieth step.
      if (event.event !== 'step' || Number(event.stepNumber) % 50 === 0) stdout.write(`${eventJson(event)}\n`);
    };
    return { show, stop: () => undefined };
  }
  const paint = paintFor(stdout, env);
  const noteColumns = columnsOf({ stdout, env }) - NAME_COLUMNS - 36;
  let bars = stdout.isTTY ? openBars(stdout) : undefined;
  const byName = new Map<string, SingleBar>();
  const draw = ({ name, total, value, note }: DemoBar) => {
    const bar = byName.get(name) ?? bars?.create(total, value ?? 0, { name: fill(name, NAME_COLUMNS), note: '' });
    if (bar === undefined) return;
    byName.set(name, bar);
    const payload = note === undefined ? {} : { note: paint.dim(cut(note, noteColumns)) };
    if (value === undefined) bar.update(payload);
    else bar.update(value, payload);
  };
  return {
    show({ name }: DemoEvent, { lines: all = [], success, bars: moved }: Shown = {}) {
      if (bars !== undefined && moved !== undefined) {
        moved.forEach(draw);
        return;
      }
      const lines = all.map((line, i) => (i === 0 ? `  ${paint.bold(name)}: ${line}` : line));
      if (success !== undefined) lines.push(success[0] + paint.green(success[1]));
      for (const line of lines) {
        if (bars === undefined) stdout.write(`${line}\n`);
        else bars.log(`${line}${CLEAR_TO_END}\n`);
      }
    },
    /** Ends the bars and restores the terminal. Later events are printed as lines. */
    stop() {
      bars?.update(); // prints the lines that were logged since the last update
      bars?.stop();
      bars = undefined;
    },
  };
}

/** Step numbers are strings, as int64 values are in protobuf's JSON. */
export function eventJson(event: object): string {
  return valueJson(event, (_, value: unknown) => (typeof value === 'bigint' ? String(value) : value));
}

/**
 * Draws a line per variant: the steps that it shares with the main line, their first difference, and the difference in
 * reward.
 */
export function comparisonTable(
  comparisons: readonly { readonly name: string; readonly comparison: CompareTrajectoriesResponse }[],
  columns: number,
): string[] {
  const row = (name: string, shared: string, difference: string, reward: string) =>
    [fill(name, NAME_COLUMNS), fill(shared, 8), fill(difference, columns - NAME_COLUMNS - 18), reward.padStart(7)].join(
      ' ',
    );
  return [
    row('against the main line', 'shared', 'first difference', 'reward'),
    ...comparisons.map(({ name, comparison }) => {
      const { sharedSteps, rewardDifference, firstDifference: first } = comparison;
      const shared = sharedSteps === 0n ? 'none' : `0–${sharedSteps - 1n}`;
      const sign = rewardDifference > 0 ? '+' : rewardDifference < 0 ? '' : '±';
      const values = first?.field ? `${first.field}: ${first.valueJson} → ${first.otherValueJson}` : 'where one ends';
      const difference = first === undefined ? 'nowhere' : `${first.stepNumber}, ${values}`;
      return row(name, shared, difference, `${sign}${shortNumber(rewardDifference)}`);
    }),
  ];
}

/** Draws a line per policy with the result of Summarize for its rollouts. */
export function summaryTable(summaries: readonly Summary[], columns: number): string[] {
  const widths = [8, 15, 16, 7];
  const row = (name: string, ...cells: string[]) =>
    cut([fill(name, NAME_COLUMNS), ...cells.map((cell, i) => cell.padStart(widths[i] ?? 0))].join(' '), columns);
  return [
    row('policy', 'rollouts', 'reward', 'success (95 %)', 'pass@4'),
    ...summaries.map(
      ({ values: [policy = '', kind = ''], rolloutCount, rewardMean, rewardStd, successRate, passAt }) => {
        const spread = rewardStd === undefined ? '' : ` ±${rewardStd.toFixed(1)}`;
        const reward = rewardMean === undefined ? '–' : `${rewardMean.toFixed(1)}${spread}`;
        // pass@k counts tasks with at least k tries.
        const pass = passAt.find(({ k }) => k === 4)?.estimate;
        const name = `${policy}, ${kind.toLowerCase().replaceAll('_', ' ')}`;
        const passed = pass === undefined ? '–' : rateText(pass.value);
        return row(name, String(rolloutCount), reward, estimateText(successRate), passed);
      },
    ),
  ];
}

/** `75 % (30–95)` */
function estimateText(estimate: Estimate | undefined): string {
  if (estimate === undefined) return '–';
  const { value, low, high } = estimate;
  if (low === undefined || high === undefined) return rateText(value);
  return `${rateText(value)} (${Math.round(low * 100)}–${Math.round(high * 100)})`;
}
