import type { Caller } from '../../domain/caller.ts';
import { invalidField } from '../../domain/errors.ts';
import { LIMITS } from '../../domain/limits.ts';
import { type FinalRewards, finalRewardsOf, type Summary, summaryOf } from '../../domain/summary.ts';
import { compareText } from '../../domain/text_order.ts';
import type { SummaryFilter, SummaryKey, SummaryRow, TrajectorySummaryRow } from '../../store/contract/summary.ts';
import type { App } from '../app.ts';
import { PAGE_BYTES } from '../page.ts';
import { sum } from './row_bytes.ts';

export interface SummarizeArgs {
  readonly filter: SummaryFilter;
  /** What to tell rollouts apart by. */
  readonly by: readonly SummaryKey[];
  /** The k of pass@k. */
  readonly passAt: readonly number[];
}

export interface Summaries {
  /** In order of their values; no more than one answer holds. */
  readonly items: readonly SummaryShown[];
  /** There are more. */
  readonly truncated: boolean;
}

export interface SummaryShown {
  readonly counts: SummaryRow;
  readonly summary: Summary;
  /** Root trajectories of runs without rollouts; undefined without one. */
  readonly trajectories: TrajectoriesShown | undefined;
}

export interface TrajectoriesShown {
  readonly counts: TrajectorySummaryRow;
  readonly finalRewards: FinalRewards;
  /** By name, in order of bytes. */
  readonly metricSums: readonly (readonly [string, number])[];
}

/** A combination that is about to be shown. */
interface Combination {
  readonly counts: SummaryRow;
  readonly trajectories: TrajectoriesShown | undefined;
}

/** Sums of metrics that a combination shows: as many as one step may have metrics. */
const MOST_SUMS = LIMITS.metrics;

/** M3. Errors: RUN_NOT_FOUND, EXPERIMENT_NOT_FOUND. */
export async function summarize(app: App, caller: Caller, args: SummarizeArgs): Promise<Summaries> {
  const { by, passAt } = args;
  const filter = { ...args.filter, runs: [...new Set(args.filter.runs)] };
  requireDistinct(by);
  const [rows, trajectoryRows] = await Promise.all([
    app.store.summarize(caller.namespace, filter, by),
    app.store.summarizeTrajectories(caller.namespace, filter, by),
  ]);
  const combinations = combine(rows, trajectoryRows);
  combinations.sort((a, b) => compareValues(a.counts.values, b.counts.values, by));
  const shown = combinations.slice(0, countFitting(combinations, passAt.length));
  const items = shown.map((each) => ({ ...each, summary: summaryOf(each.counts, passAt) }));
  return { items, truncated: items.length < combinations.length };
}

/** One combination for rollouts and trajectories that have the same values. */
function combine(rows: readonly SummaryRow[], trajectoryRows: readonly TrajectorySummaryRow[]): Combination[] {
  const trajectoriesOf = new Map(trajectoryRows.map((row) => [JSON.stringify(row.values), row]));
  const combinations = rows.map((counts): Combination => {
    const key = JSON.stringify(counts.values);
    const trajectories = trajectoriesOf.get(key);
    trajectoriesOf.delete(key);
    return { counts, trajectories: trajectories && toShown(trajectories) };
  });
  for (const row of trajectoriesOf.values()) {
    combinations.push({ counts: { ...NO_ROLLOUTS, values: row.values }, trajectories: toShown(row) });
  }
  return combinations;
}

const NO_ROLLOUTS: SummaryRow = {
  values: [],
  pending: 0n,
  live: 0n,
  completed: 0n,
  failed: 0n,
  cancelled: 0n,
  judged: 0n,
  successes: 0n,
  rewards: { count: 0n, sum: 0, min: 0, max: 0, squares: 0, median: 0 },
  turns: 0n,
  durations: { count: 0n, seconds: 0 },
  queueTimes: { count: 0n, seconds: 0 },
  tokens: { count: 0n, sum: 0 },
  tasks: [],
};

function toShown(counts: TrajectorySummaryRow): TrajectoriesShown {
  const metricSums = [...counts.metricSums].sort(([one], [other]) => compareText(one, other)).slice(0, MOST_SUMS);
  return { counts, finalRewards: finalRewardsOf(counts.rewards), metricSums };
}

function requireDistinct(by: readonly SummaryKey[]): void {
  const seen = new Set<string>();
  for (const [i, key] of by.entries()) {
    const name = JSON.stringify(key);
    if (seen.has(name)) throw invalidField(`dimensions[${i}]`, 'must be there once');
    seen.add(name);
  }
}

/** Numbers by number, all else by bytes. */
function compareValues(a: readonly string[], b: readonly string[], by: readonly SummaryKey[]): number {
  for (const [i, key] of by.entries()) {
    const [one = '', other = ''] = [a[i], b[i]];
    // A trajectory has no number; BigInt('') is 0.
    const order =
      key === 'NUMBER' && one !== other
        ? Number(BigInt(one) - BigInt(other)) || compareText(one, other)
        : compareText(one, other);
    if (order !== 0) return order;
  }
  return 0;
}

/** As many as fit into one answer (RD3). */
function countFitting(combinations: readonly Combination[], ks: number): number {
  let bytes = 0;
  const cut = combinations.findIndex(({ counts: { values }, trajectories }, i) => {
    bytes += 256 + 64 * ks + 4 * values.length + sum(values);
    const sums = trajectories?.metricSums ?? [];
    bytes += trajectories === undefined ? 0 : 64 + 16 * sums.length + sum(sums.map(([name]) => name));
    return bytes > PAGE_BYTES || i === LIMITS.summaries;
  });
  return cut === -1 ? combinations.length : cut;
}
