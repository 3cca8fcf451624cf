import { alternate, type Bench, compare, figure, type Run } from '../bench.ts';
import { runProgram } from '../processes.ts';
import type { DriverFigures, DriverSettings } from '../programs/driver.ts';
import type { StateFigures, StateSettings } from '../programs/state.ts';
import type { BenchServer } from '../resources.ts';
import { ingest, type Load } from './ingest.ts';

const BYTES = 256_000;
const MEGABYTES = BYTES / 1e6;
const INLINE: Load = { streams: 4, connections: 4, window: 8, stepsPerFrame: 1, payload: 'big-state' };

export const bigState: Bench = {
  names: ['big-state', 'big-state-driver', 'big-state-put'],
  about:
    'MB/s of durable states of 256 KB, 4 streams, inline in steps; against the bare handler, and the driver’s own inserts; and put alone',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const server = await run.resources.server('real', run.engine);
    const bare = await run.resources.server('bare', run.engine);
    const database = await run.resources.emptySchema(run.engine);
    const samples = await alternate(run, {
      inline: async () => (await ingest(run, server, INLINE)) * MEGABYTES,
      put: async () => (await put(run, server)) * MEGABYTES,
      bare: async () => (await ingest(run, bare, INLINE)) * MEGABYTES,
      driver: async (round) => (await insert(run, database, round)) * MEGABYTES,
    });
    const unit = 'MB/s';
    return [
      compare(run, { bench: 'big-state', unit }, samples.inline, samples.bare),
      compare(run, { bench: 'big-state-driver', unit }, samples.inline, samples.driver),
      figure(run, { bench: 'big-state-put', unit }, samples.put),
    ];
  },
};

async function put({ warmupSeconds, seconds }: Run, { address }: BenchServer): Promise<number> {
  const settings: StateSettings = { address, streams: 4, bytes: BYTES, warmupSeconds, seconds };
  return (await runProgram<StateFigures>('state', settings)).statesPerSecond;
}

async function insert({ warmupSeconds, seconds }: Run, database: string, round: number): Promise<number> {
  const settings: DriverSettings = {
    task: 'insert-states',
    database,
    payload: 'big-state',
    firstTree: round * 100 + 1,
    warmupSeconds,
    seconds,
  };
  return (await runProgram<DriverFigures>('driver', settings)).perSecond;
}
