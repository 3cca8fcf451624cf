import { create, toBinary } from '@bufbuild/protobuf';
import { ReadMetricsRequestSchema } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { alternate, type Bench, compare, median, type Run } from '../bench.ts';
import { runProgram } from '../processes.ts';
import type { MetricsFigures, MetricsSettings } from '../programs/metrics.ts';
import type { RequestFigures, RequestSettings } from '../programs/request.ts';
import type { RunSqlFigures, RunSqlSettings } from '../programs/run_sql.ts';

const CALLERS = 16;
const POINTS_PER_CALL = 100;
const POINTS_PER_BULK = 1000;

export const metricsIngest: Bench = {
  names: ['metrics-ingest', 'metrics-ingest-bulk'],
  about:
    'points/s of LogMetrics, 100 a call, 16 callers with a run each; against the same points by the driver alone (Postgres: binary COPY), 100 a commit, and 1,000',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const server = await run.resources.server('real', run.engine);
    const bare = await run.resources.emptySchema(run.engine);
    const { warmupSeconds, seconds } = run;
    const serverMicros: number[] = [];
    const clientMicros: number[] = [];
    const log = async () => {
      const runs = await server.runs(CALLERS);
      const cpu = server.cpuSeconds();
      const figures = await runProgram<MetricsFigures>('metrics', {
        address: server.address,
        runs,
        connections: 4,
        pointsPerCall: POINTS_PER_CALL,
        warmupSeconds,
        seconds,
      } satisfies MetricsSettings);
      serverMicros.push(((server.cpuSeconds() - cpu) / figures.allPoints) * 1e6);
      clientMicros.push((figures.clientCpuSeconds / figures.allPoints) * 1e6);
      return figures.pointsPerSecond;
    };
    let series = 1;
    const insert = async (pointsPerCommit: number) => {
      const task = { name: 'insert-points', firstSeries: series, pointsPerCommit } as const;
      series += 1000;
      const settings: RunSqlSettings = { task, database: bare, warmupSeconds, seconds };
      return (await runProgram<RunSqlFigures>('run_sql', settings)).perSecond * pointsPerCommit;
    };
    const samples = await alternate(run, {
      LogMetrics: log,
      '100 a commit': () => insert(POINTS_PER_CALL),
      '1,000 a commit': () => insert(POINTS_PER_BULK),
    });
    const note = `CPU a point: server ${median(serverMicros).toFixed(1)} µs, client ${median(clientMicros).toFixed(1)} µs`;
    const unit = 'points/s';
    return [
      compare(
        run,
        { bench: 'metrics-ingest', aim: '>= 0.35', unit, note },
        samples.LogMetrics,
        samples['100 a commit'],
      ),
      compare(run, { bench: 'metrics-ingest-bulk', unit }, samples.LogMetrics, samples['1,000 a commit']),
    ];
  },
};

const SERIES = 10;
const MAX_POINTS = 500;

export const metricsRead: Bench = {
  names: ['metrics-read'],
  about:
    'p50 of ReadMetrics, 10 series of 1,000,000 points down to 500 each; against the driver’s own min and max of the same buckets',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const writing = await run.resources.server('real', run.engine);
    const [runId] = await writing.runs(1);
    await writing.series(runId!, SERIES);
    const { database } = writing;
    await writing.stop();
    run.showProgress(`filling ${SERIES} series with ${run.metricPoints} points each`);
    await runSql(run, database, { name: 'fill-series', pointsEach: run.metricPoints }, true);
    let bytes = 0;
    // SQLite allows one process per file, so each measurement has its own process.
    const read = async () => {
      const server = await run.resources.server('real', run.engine, database);
      const request = create(ReadMetricsRequestSchema, { runIds: [runId!], maxPoints: MAX_POINTS });
      const figures = await runProgram<RequestFigures>('request', {
        address: server.address,
        method: '/anabranch.v1.RunService/ReadMetrics',
        request: Buffer.from(toBinary(ReadMetricsRequestSchema, request)).toString('base64'),
        warmupSeconds: run.warmupSeconds,
        seconds: run.seconds,
      } satisfies RequestSettings);
      bytes = figures.bytes;
      await server.stop();
      return figures.p50Ms;
    };
    const task = {
      name: 'aggregate',
      pointsEach: run.metricPoints,
      buckets: MAX_POINTS / 2,
    } as const;
    const samples = await alternate(run, {
      ReadMetrics: read,
      aggregate: async () => {
        const { p50Ms, rows } = await runSql(run, database, task);
        if (rows !== SERIES * task.buckets) throw new Error(`there are ${rows} buckets`);
        return p50Ms;
      },
    });
    const note = `${bytes.toLocaleString('en-US')} B`;
    return [
      compare(run, { bench: 'metrics-read', aim: '<= 1.5', unit: 'ms', note }, samples.ReadMetrics, samples.aggregate),
    ];
  },
};

/** Runs hand-written SQL in the driver; with `once`, only once. */
export function runSql(run: Run, database: string, task: RunSqlSettings['task'], once = false): Promise<RunSqlFigures> {
  const { warmupSeconds, seconds } = once ? { warmupSeconds: 0, seconds: 0 } : run;
  return runProgram<RunSqlFigures>('run_sql', { task, database, warmupSeconds, seconds } satisfies RunSqlSettings);
}
