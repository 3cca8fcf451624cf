import { type Bench, median } from '../bench.ts';
import { runProgram } from '../processes.ts';
import type { GreedyFigures, GreedySettings } from '../programs/greedy.ts';
import { measureBeside } from './beside_writer.ts';
import { longTrajectory } from './read.ts';

const STEPS = 1_000_000;

export const backupBesideWriter: Bench = {
  names: ['backup-beside-writer', 'backup-beside-writer-slowest'],
  about:
    'appends/s of one writer that waits for each ack, beside backups of 1,000,000 steps with states, one after the other (SQLite); against the same writer alone. And its slowest append; against 50 ms more than its slowest alone',
  engines: ['sqlite'],
  async run(run) {
    const server = await run.resources.server('real', run.engine);
    await longTrajectory(run, server, STEPS);
    const perSecond: number[] = [];
    return measureBeside(run, server, {
      bench: 'backup-beside-writer',
      async meanwhile() {
        const settings: GreedySettings = {
          ...{ address: server.address, protocol: 'grpc', task: 'backups', trajectoryId: '', runId: '', callers: 1 },
          seconds: run.warmupSeconds + run.seconds,
        };
        perSecond.push((await runProgram<GreedyFigures>('greedy', settings)).perSecond);
      },
      note: () => `backups of ${(median(perSecond) / 1024 ** 2).toFixed(0)} MiB/s`,
    });
  },
};
