import { alternate, type Bench, compare, median, type Result, type Run } from '../bench.ts';
import { runProgram } from '../processes.ts';
import type { GreedyFigures, GreedySettings } from '../programs/greedy.ts';
import type { BenchServer } from '../resources.ts';
import { MORE_MS, WRITER } from './beside_writer.ts';
import { type Ingested, ingest } from './ingest.ts';
import { runSql } from './metrics.ts';
import { longTrajectory } from './read.ts';

const STEPS = 1_000_000;

const CALLERS = { steps: 1, metrics: 1, lists: 40 } as const;
const READERS = (['steps', 'metrics', 'lists'] as const).flatMap((task) =>
  (['connect', 'grpc'] as const).map((protocol) => ({ task, protocol, name: `${task} by ${protocol}` }) as const),
);

export const readerBesideWriter: Bench = {
  names: READERS.flatMap(({ task, protocol }) => [benchName(task, protocol), `${benchName(task, protocol)}-slowest`]),
  about:
    'appends/s of one writer that waits for each ack, beside a reader that takes all it can: 1,000,000 FULL steps, as many metric points, or 40 callers of ListSteps by reward over the steps; against the same writer alone. And its slowest append; against 50 ms more than its slowest alone',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const { server, trajectoryId, runId } = await furnished(run);
    const slowest: Record<string, number[]> = {};
    const perSecond: Record<string, number[]> = {};
    const write = (name: string, meanwhile?: () => Promise<void>) => {
      const seen = ({ maxMs }: Ingested) => {
        slowest[name] = [...(slowest[name] ?? []), maxMs[0]!];
      };
      return ingest(run, server, WRITER, meanwhile === undefined ? { seen } : { seen, meanwhile });
    };
    const measures: Record<string, () => Promise<number>> = { alone: () => write('alone') };
    for (const { task, protocol, name } of READERS) {
      measures[name] = () =>
        write(name, async () => {
          const settings: GreedySettings = {
            address: server.address,
            protocol,
            task,
            trajectoryId,
            experimentId: '',
            runId,
            callers: CALLERS[task],
            seconds: run.warmupSeconds + run.seconds,
          };
          const figures = await runProgram<GreedyFigures>('greedy', settings);
          perSecond[name] = [...(perSecond[name] ?? []), figures.perSecond];
        });
    }
    const samples = await alternate(run, measures);
    const bound = Math.max(...slowest.alone!) + MORE_MS;
    return READERS.flatMap(({ task, protocol, name }): Result[] => {
      const note = `reader ${median(perSecond[name]!).toFixed(0)} ${task}/s`;
      const bench = benchName(task, protocol);
      return [
        compare(run, { bench, aim: '>= 0.5', unit: 'appends/s', note }, samples[name]!, samples.alone!),
        compare(run, { bench: `${bench}-slowest`, aim: '<= 1', unit: 'ms' }, [Math.max(...slowest[name]!)], [bound]),
      ];
    });
  },
};

function benchName(task: keyof typeof CALLERS, protocol: GreedySettings['protocol']): string {
  return `reader-beside-writer-${task}-${protocol}`;
}

/** Starts a server with a long trajectory, and a run with a long metric series. */
async function furnished(run: Run): Promise<{ server: BenchServer; trajectoryId: string; runId: string }> {
  const filling = await run.resources.server('real', run.engine);
  const [runId] = await filling.runs(1);
  await filling.series(runId!, 1);
  const trajectoryId = await longTrajectory(run, filling, STEPS);
  await filling.stop();
  run.showProgress(`filling a series with ${run.metricPoints} points`);
  await runSql(run, filling.database, { name: 'fill-series', pointsEach: run.metricPoints }, true);
  return { server: await run.resources.server('real', run.engine, filling.database), trajectoryId, runId: runId! };
}
