import { type Bench, median } from '../bench.ts';
import { measureBeside } from './beside_writer.ts';
import { longTrajectory } from './read.ts';

const STEPS = 100_000;

export const deleteBesideWriter: Bench = {
  names: ['delete-beside-writer', 'delete-beside-writer-slowest'],
  about:
    'appends/s of one writer that waits for each ack, beside DeleteTrajectory of 100,000 steps; against the same writer alone. And its slowest append; against 50 ms more than its slowest alone',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const server = await run.resources.server('real', run.engine);
    const deletes: number[] = [];
    let trajectoryId = '';
    return measureBeside(run, server, {
      bench: 'delete-beside-writer',
      async prepare() {
        trajectoryId = await longTrajectory(run, server, STEPS);
      },
      async meanwhile() {
        await new Promise((resolve) => setTimeout(resolve, run.warmupSeconds * 1000));
        deletes.push(await server.deleteTrajectory(trajectoryId));
      },
      note: () => `a deletion takes ${(median(deletes) / 1000).toFixed(1)} s`,
    });
  },
};
