/** The tables that the demo prints: the variants compared with the main line, and the policies of the training. */
import type { Estimate, Summary } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { cut, fill, shortNumber } from '../cli/columns.ts';
import { rateText } from '../cli/rollouts_table.ts';
import { NAME_COLUMNS } from './display.ts';
import type { DemoEvent } from './events.ts';

/**
 * Draws a line per variant: the steps that it shares with the main line, their first difference, and the difference in
 * reward.
 */
export function comparisonTable(comparisons: readonly DemoEvent<'compared'>[], columns: number): string[] {
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
