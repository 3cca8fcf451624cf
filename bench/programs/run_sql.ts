import { type BarePoint, openRunSql } from '../run_sql.ts';
import { percentile, program } from './program.ts';

/** Hand-written SQL for runs in the driver: repeats one query, inserts points, or fills tables. */
export interface RunSqlSettings {
  readonly task:
    | { readonly name: 'list' }
    | { readonly name: 'tree'; readonly runId: string }
    | { readonly name: 'aggregate'; readonly pointsEach: number; readonly buckets: number }
    | { readonly name: 'insert-points'; readonly firstSeries: number; readonly pointsPerCommit: number }
    | { readonly name: 'fill-series'; readonly pointsEach: number }
    | { readonly name: 'fill-stages'; readonly each: number };
  readonly database: string;
  readonly warmupSeconds: number;
  readonly seconds: number;
}

export interface RunSqlFigures {
  readonly p50Ms: number;
  /** Repetitions per second. */
  readonly perSecond: number;
  /** Rows of the last result. */
  readonly rows: number;
}

const RUNS = 16;
const SERIES_EACH = 10;

await program(async ({ task, database, warmupSeconds, seconds }: RunSqlSettings): Promise<RunSqlFigures> => {
  const sql = await openRunSql(database);
  let commits = 0;
  const once = async (): Promise<number> => {
    switch (task.name) {
      case 'list':
        return sql.list();
      case 'tree':
        return sql.tree(task.runId);
      case 'aggregate':
        return sql.aggregate(task.pointsEach, task.buckets);
      case 'insert-points':
        await sql.insertPoints(pointsOf(commits, task.firstSeries, task.pointsPerCommit));
        commits += 1;
        return task.pointsPerCommit;
      case 'fill-series':
        await sql.fillSeries(task.pointsEach);
        return 0;
      case 'fill-stages':
        await sql.fillStages(task.each);
        return 0;
    }
  };
  let rows = 0;
  const measureFor = async (forSeconds: number): Promise<number[]> => {
    const times: number[] = [];
    const end = performance.now() + forSeconds * 1000;
    do {
      const begun = performance.now();
      rows = await once();
      times.push(performance.now() - begun);
    } while (performance.now() < end);
    return times;
  };
  if (warmupSeconds > 0) await measureFor(warmupSeconds);
  const times = await measureFor(seconds);
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
