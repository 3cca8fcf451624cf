import { openRolloutSql } from '../rollout_sql.ts';
import { percentile, program } from './program.ts';

/** Hand-written SQL for rollouts in the driver: repeats one query, or fills tables. */
export interface RolloutSqlSettings {
  readonly task:
    | { readonly name: 'list' | 'snapshot' | 'progress' | 'summarize' }
    | { readonly name: 'fill'; readonly count: number; readonly as: 'queued' | 'done' };
  readonly database: string;
  readonly warmupSeconds: number;
  readonly seconds: number;
}

export interface RolloutSqlFigures {
  readonly p50Ms: number;
  /** Rows of the last result. */
  readonly rows: number;
}

await program(async ({ task, database, warmupSeconds, seconds }: RolloutSqlSettings): Promise<RolloutSqlFigures> => {
  const sql = await openRolloutSql(database);
  if (task.name === 'fill') {
    await sql.fill(task.count, task.as);
    return { p50Ms: 0, rows: task.count };
  }
  let rows = 0;
  const measureFor = async (forSeconds: number): Promise<number[]> => {
    const times: number[] = [];
    const end = performance.now() + forSeconds * 1000;
    do {
      const begun = performance.now();
      rows = await sql[task.name]();
      times.push(performance.now() - begun);
    } while (performance.now() < end);
    return times;
  };
  if (warmupSeconds > 0) await measureFor(warmupSeconds);
  return { p50Ms: percentile(await measureFor(seconds), 0.5), rows };
});
