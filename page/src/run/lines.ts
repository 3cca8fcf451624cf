import { nameOf, visible } from '../format.ts';
import type { Series } from '../tree/series.ts';
import { type Band, bandOf } from './band.ts';
import type { MetricRead } from './metric_book.ts';

/** One line of a plot: a metric of a run. */
export interface Line {
  readonly name: string;
  /** Place among the shown runs. It determines the colour of the line. */
  readonly place: number;
  readonly series: Series;
  /** Points that were logged. Fewer may be shown. */
  readonly points: number;
  /** Of the mean of several runs: between which values they are. */
  readonly band?: Band | undefined;
}

interface ShownRun {
  readonly id: string;
  readonly name: string;
  readonly labels: Readonly<Record<string, string>>;
}

/** Returns the names of labels that some of the runs have. */
export function labelNames(runs: readonly Pick<ShownRun, 'labels'>[]): string[] {
  return [...new Set(runs.flatMap(({ labels }) => Object.keys(labels)))].sort();
}

/**
 * Returns the lines of a plot and their names: one for each run, or one for each value of a label, with the mean of its
 * runs and the range of their values. Runs without the label are one line together.
 */
export function linesOf(
  read: readonly MetricRead[],
  runs: readonly ShownRun[],
  by: string,
): { readonly names: readonly string[]; readonly lines: readonly Line[] } {
  const groups = [...Map.groupBy(runs, (run) => (by === '' ? run.id : (run.labels[by] ?? '')))];
  const names = groups.map(([value, of]) => {
    if (by === '') return nameOf(of[0] ?? { id: value, name: '' });
    return `${visible(by)}=${visible(value)} (${of.length})`;
  });
  const lines = groups.flatMap(([, of], place): Line[] => {
    const found = read.filter(({ runId, series }) => series.steps.length > 0 && of.some(({ id }) => id === runId));
    const [first] = found;
    if (first === undefined) return [];
    const points = found.reduce((sum, each) => sum + each.points, 0);
    const line = { name: names[place] ?? '', place, points };
    if (by === '') return [{ ...line, series: first.series, band: undefined }];
    const band = bandOf(found.map(({ series }) => series));
    return [{ ...line, series: band.mean, band }];
  });
  return { names, lines };
}
