import { type BarePoint, openBooks } from '../books.ts';
import { percentile, program } from './program.ts';

/** Hand-written SQL for runs in the driver: repeats one query, inserts points, or fills tables. */
export interface BooksSettings {
  readonly task:
    | { readonly name: 'list' }
    | { readonly name: 'tree'; readonly runId: string }
    | { readonly name: 'aggregate'; readonly pointsEach: number; readonly stretches: number }
    | { readonly name: 'insert-points'; readonly firstSeries: number; readonly pointsPerCommit: number }
    | { readonly name: 'fill-series'; readonly pointsEach: number }
    | { readonly name: 'fill-stages'; readonly each: number };
  readonly database: string;
  readonly warmupSeconds: number;
  readonly seconds: number;
}

export interface BooksFigures {
  readonly p50Ms: number;
  /** Repetitions per second. */
  readonly perSecond: number;
  /** Rows of the last result. */
  readonly rows: number;
}

const RUNS = 16;
const SERIES_EACH = 10;

await program(async ({ task, database, warmupSeconds, seconds }: BooksSettings): Promise<BooksFigures> => {
  const books = await openBooks(database);
  let commits = 0;
  const once = async (): Promise<number> => {
    switch (task.name) {
      case 'list':
        return books.list();
      case 'tree':
        return books.tree(task.runId);
      case 'aggregate':
        return books.aggregate(task.pointsEach, task.stretches);
      case 'insert-points':
        await books.insertPoints(pointsOf(commits, task.firstSeries, task.pointsPerCommit));
        commits += 1;
        return task.pointsPerCommit;
      case 'fill-series':
        await books.fillSeries(task.pointsEach);
        return 0;
      case 'fill-stages':
        await books.fillStages(task.each);
        return 0;
    }
  };
  let rows = 0;
  const again = async (forSeconds: number): Promise<number[]> => {
    const times: number[] = [];
    const end = performance.now() + forSeconds * 1000;
    do {
      const begun = performance.now();
      rows = await once();
      times.push(performance.now() - begun);
    } while (performance.now() < end);
    return times;
  };
  if (warmupSeconds > 0) await again(warmupSeconds);
  const times = await again(seconds);
  const total = times.reduce((sum, ms) => sum + ms, 0);
  return { p50Ms: percentile(times, 0.5), perSecond: times.length / (total / 1000), rows };
});

/** Returns the points of the n-th commit, as trainers log them: ten series of one of sixteen runs. */
function pointsOf(commit: number, firstSeries: number, count: number): BarePoint[] {
  const series = firstSeries + (commit % RUNS) * SERIES_EACH;
  const step = Math.floor(commit / RUNS) * (count / SERIES_EACH);
  return Array.from({ length: count }, (_, i) => ({
    series: series + (i % SERIES_EACH),
    metricStep: step + Math.floor(i / SERIES_EACH),
    value: Math.sqrt(i + 1),
  }));
}
