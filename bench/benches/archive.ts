import path from 'node:path';
import { alternate, type Bench, compare, median, type Run } from '../bench.ts';
import { runProgram } from '../processes.ts';
import type { ArchiveFigures, ArchiveSettings } from '../programs/archive.ts';
import type { ReadFigures, ReadSettings } from '../programs/read.ts';
import type { BenchServer } from '../resources.ts';
import { BATCH, ingest } from './ingest.ts';
import { longTrajectory } from './read.ts';

export const exportBench: Bench = {
  names: ['export'],
  about:
    'steps/s of ExportArchive of a trajectory of 1,000,000 steps with states; against ReadSteps of them, FULL view, one reader',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const server = await run.resources.server('real', run.engine);
    const trajectoryId = await longTrajectory(run, server, run.archiveSteps);
    const cpuMicros: number[] = [];
    let bytesPerStep = 0;
    const samples = await alternate(run, {
      export: async () => {
        const cpu = server.cpuSeconds();
        const figures = await archive(server, 'export', trajectoryId, '');
        cpuMicros.push(((server.cpuSeconds() - cpu) / figures.steps) * 1e6);
        bytesPerStep = figures.bytes / figures.steps;
        return figures.stepsPerSecond;
      },
      read: async () => {
        const settings: ReadSettings = {
          address: server.address,
          trajectories: [trajectoryId],
          warmupSeconds: 0,
          seconds: 0,
        };
        return (await runProgram<ReadFigures>('read', settings)).stepsPerSecond;
      },
    });
    const note = `${bytesPerStep.toFixed(0)} B a step; CPU a step: server ${median(cpuMicros).toFixed(1)} µs`;
    return [compare(run, { bench: 'export', aim: '>= 0.5', unit: 'steps/s', note }, samples.export, samples.read)];
  },
};

export const importBench: Bench = {
  names: ['import'],
  about:
    'steps/s of ImportArchive of 1,000,000 steps with states into a new database; against ingest-batch on another one',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const file = await exported(run);
    const batches = await run.resources.server('real', run.engine);
    const cpuMicros: number[] = [];
    const samples = await alternate(run, {
      import: async () => {
        const server = await run.resources.server('real', run.engine);
        const cpu = server.cpuSeconds();
        const figures = await archive(server, 'import', '', file);
        cpuMicros.push(((server.cpuSeconds() - cpu) / figures.steps) * 1e6);
        await server.stop();
        return figures.stepsPerSecond;
      },
      'ingest-batch': () => ingest(run, batches, BATCH),
    });
    const note = `CPU a step: server ${median(cpuMicros).toFixed(1)} µs`;
    const about = { bench: 'import', aim: '>= 0.5', unit: 'steps/s', note };
    return [compare(run, about, samples.import, samples['ingest-batch'])];
  },
};

/** Exports a trajectory into a file, which does not depend on the engine. Returns its path. */
async function exported(run: Run): Promise<string> {
  const file = path.join(await run.resources.folder(), 'archive.tar.zst');
  const server = await run.resources.server('real', 'sqlite');
  const trajectoryId = await longTrajectory(run, server, run.archiveSteps);
  await archive(server, 'export', trajectoryId, file);
  await server.stop();
  return file;
}

function archive(
  { address }: BenchServer,
  task: ArchiveSettings['task'],
  trajectoryId: string,
  file: string,
): Promise<ArchiveFigures> {
  return runProgram<ArchiveFigures>('archive', { address, task, trajectoryId, file } satisfies ArchiveSettings);
}
