import { type Bench, median, type Run } from '../bench.ts';
import { runProgram } from '../processes.ts';
import type { GreedyFigures, GreedySettings } from '../programs/greedy.ts';
import type { BenchServer } from '../resources.ts';
import { measureBeside } from './beside_writer.ts';
import { longTrajectories, longTrajectory } from './read.ts';

const AGAINST =
  'of 1,000,000 steps with states; against the same writer alone. And its slowest append; against 50 ms more than its slowest alone';

export const backupBesideWriter: Bench = {
  names: besideNames('backup'),
  about: `appends/s of one writer that waits for each ack, beside backups, one after the other (SQLite), ${AGAINST}`,
  engines: ['sqlite'],
  async run(run) {
    const server = await run.resources.server('real', run.engine);
    await longTrajectory(run, server, run.archiveSteps);
    const perSecond: number[] = [];
    return measureBeside(run, server, {
      bench: 'backup-beside-writer',
      async meanwhile() {
        perSecond.push((await greedy(run, server, { task: 'backups' })).perSecond);
      },
      note: () => `backups of ${mebibytes(perSecond)} MiB/s`,
    });
  },
};

export const exportBesideWriter: Bench = {
  names: besideNames('export'),
  about: `appends/s of one writer that waits for each ack, beside exports, one after the other, ${AGAINST}`,
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const server = await run.resources.server('real', run.engine);
    const trajectoryId = await longTrajectory(run, server, run.archiveSteps);
    const perSecond: number[] = [];
    return measureBeside(run, server, {
      bench: 'export-beside-writer',
      async meanwhile() {
        perSecond.push((await greedy(run, server, { task: 'exports', trajectoryId })).perSecond);
      },
      note: () => `exports of ${median(perSecond).toFixed(0)} steps/s`,
    });
  },
};

export const retentionBesideWriter: Bench = {
  names: besideNames('retention'),
  about: `appends/s of one writer that waits for each ack, beside ApplyRetention that removes the states ${AGAINST}`,
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const server = await run.resources.server('real', run.engine);
    const experimentId = await server.emptyExperiment();
    const perSecond: number[] = [];
    let [left, most] = [0, 0];
    return measureBeside(run, server, {
      bench: 'retention-beside-writer',
      async prepare() {
        if (left > most) return;
        await longTrajectories(run, server, { count: 1, steps: run.archiveSteps, experimentId });
        left = run.archiveSteps;
      },
      async meanwhile() {
        const figures = await greedy(run, server, { task: 'retention', experimentId });
        perSecond.push(figures.perSecond);
        most = Math.max(most, figures.items);
        left -= figures.items;
      },
      note: () => `removes ${median(perSecond).toFixed(0)} states/s`,
    });
  },
};

function besideNames(work: string): readonly string[] {
  return [`${work}-beside-writer`, `${work}-beside-writer-slowest`];
}

type Work = Pick<GreedySettings, 'task'> & Partial<Pick<GreedySettings, 'trajectoryId' | 'experimentId'>>;

/** Runs for as long as the writer is measured. */
function greedy(run: Run, { address }: BenchServer, work: Work): Promise<GreedyFigures> {
  const settings: GreedySettings = {
    address,
    protocol: 'grpc',
    trajectoryId: '',
    experimentId: '',
    runId: '',
    callers: 1,
    ...work,
    seconds: run.warmupSeconds + run.seconds,
  };
  return runProgram<GreedyFigures>('greedy', settings);
}

function mebibytes(bytes: readonly number[]): string {
  return (median(bytes) / 1024 ** 2).toFixed(0);
}
