import type { Caller } from '../../domain/caller.ts';
import { invalidField } from '../../domain/errors.ts';
import { parseUuid } from '../../domain/ids.ts';
import { LIMITS } from '../../domain/limits.ts';
import { type Summary, summaryOf } from '../../domain/summary.ts';
import { requireText } from '../../domain/text.ts';
import { compareText } from '../../domain/text_order.ts';
import type { SummaryFilter, SummaryKey, SummaryRow } from '../../store/contract/summary.ts';
import type { App } from '../app.ts';
import { PAGE_BYTES } from '../page.ts';
import { requireLabels } from './fields.ts';
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
}

/** M3. Errors: RUN_NOT_FOUND, EXPERIMENT_NOT_FOUND. */
export async function summarize(app: App, caller: Caller, args: SummarizeArgs): Promise<Summaries> {
  const filter = checkFilter(args.filter);
  const { by, passAt } = args;
  requireDistinct(by);
  const rows = await app.store.summarize(caller.namespace, filter, by);
  const sorted = [...rows].sort((a, b) => compareValues(a.values, b.values, by));
  const shown = sorted.slice(0, countFitting(sorted, passAt.length));
  const items = shown.map((counts) => ({ counts, summary: summaryOf(counts, passAt) }));
  return { items, truncated: items.length < rows.length };
}

function checkFilter(filter: SummaryFilter): SummaryFilter {
  const { experimentId } = filter;
  const runs = filter.runs.map((id, i) => parseUuid(id, `run_ids[${i}]`));
  for (const [i, taskId] of filter.taskIds.entries()) requireText(taskId, `task_ids[${i}]`);
  requireLabels(filter.runLabels, 'run_labels');
  requireLabels(filter.labels);
  return {
    ...filter,
    runs: [...new Set(runs)],
    experimentId: experimentId === undefined ? undefined : parseUuid(experimentId, 'experiment_id'),
  };
}

function requireDistinct(by: readonly SummaryKey[]): void {
  const seen = new Set<string>();
  for (const [i, key] of by.entries()) {
    if (typeof key !== 'string') requireText(key.label, `dimensions[${i}].label`);
    const name = JSON.stringify(key);
    if (seen.has(name)) throw invalidField(`dimensions[${i}]`, 'must be there once');
    seen.add(name);
  }
}

/** Numbers by number, all else by bytes. */
function compareValues(a: readonly string[], b: readonly string[], by: readonly SummaryKey[]): number {
  for (const [i, key] of by.entries()) {
    const [one = '', other = ''] = [a[i], b[i]];
    const order = key === 'NUMBER' ? Number(BigInt(one) - BigInt(other)) : compareText(one, other);
    if (order !== 0) return order;
  }
  return 0;
}

/** As many as fit into one answer (RD3). */
function countFitting(rows: readonly SummaryRow[], ks: number): number {
  let bytes = 0;
  const cut = rows.findIndex(({ values }, i) => {
    bytes += 256 + 64 * ks + 4 * values.length + sum(values);
    return bytes > PAGE_BYTES || i === LIMITS.summaries;
  });
  return cut === -1 ? rows.length : cut;
}
