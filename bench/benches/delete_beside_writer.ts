import { alternate, type Bench, compare, median, type Result } from '../bench.ts';
import { type Ingested, ingest, type Load } from './ingest.ts';
import { longTrajectory } from './read.ts';

const STEPS = 100_000;
/** Bound of the slowest append, in milliseconds above the slowest append without a deletion. */
const MORE_MS = 50;

/** The writer waits for each ack, so every delay of the server reduces its rate. */
const WRITER: Load = { streams: 1, connections: 1, window: 1, stepsPerFrame: 1, payload: 'step-with-state' };

export const deleteBesideWriter: Bench = {
  names: ['delete-beside-writer', 'delete-beside-writer-slowest'],
  about:
    'appends/s of one writer that waits for each ack, beside DeleteTrajectory of 100,000 steps; against the same writer alone. And its slowest append; against 50 ms more than its slowest alone',
  engines: ['sqlite', 'postgres'],
  async run(run): Promise<Result[]> {
    const server = await run.resources.server('real', run.engine);
    const slowest: Record<'alone' | 'beside', number[]> = { alone: [], beside: [] };
    const deletes: number[] = [];
    const seen =
      (name: keyof typeof slowest) =>
      ({ maxMs }: Ingested) => {
        slowest[name].push(maxMs[0]!);
      };
    const samples = await alternate(run, {
      alone: () => ingest(run, server, WRITER, { seen: seen('alone') }),
      'beside a deletion': async () => {
        const trajectoryId = await longTrajectory(run, server, STEPS);
        return ingest(run, server, WRITER, {
          seen: seen('beside'),
          async meanwhile() {
            await new Promise((resolve) => setTimeout(resolve, run.warmupSeconds * 1000));
            deletes.push(await server.deleteTrajectory(trajectoryId));
          },
        });
      },
    });
    const note = `a deletion takes ${(median(deletes) / 1000).toFixed(1)} s`;
    const bound = Math.max(...slowest.alone) + MORE_MS;
    return [
      compare(
        run,
        { bench: 'delete-beside-writer', aim: '>= 0.5', unit: 'appends/s', note },
        samples['beside a deletion'],
        samples.alone,
      ),
      compare(
        run,
        { bench: 'delete-beside-writer-slowest', aim: '<= 1', unit: 'ms' },
        [Math.max(...slowest.beside)],
        [bound],
      ),
    ];
  },
};
