import { alternate, type Bench, type Comparison, figure, type Run } from '../bench.ts';
import type { BenchServer } from '../resources.ts';
import { costNote, type Ingested, ingest, type Load } from './ingest.ts';

/**
 * Results of other systems for the same work on 2 cores, from scripts that are not part of this repository (see
 * README.md). A step is 430 bytes of JSON, and a client waits for each answer.
 */
const OTHERS = {
  one: 'UmaDB 0.45 ms; a Postgres table by psycopg 0.25 ms; LangGraph savers 0.20 to 0.35 ms',
  sixteen: 'UmaDB 9,700/s; a Postgres table 11,200/s; LangGraph savers 3,500 to 4,000/s',
  batches: 'UmaDB 202,000/s; a Postgres table 61,000/s by executemany, 139,000/s by COPY',
};

const ONE: Load = { streams: 1, connections: 1, window: 1, stepsPerFrame: 1, payload: 'json' };
const SIXTEEN: Load = { ...ONE, streams: 16, connections: 16 };
const BATCHES: Load = { ...ONE, streams: 4, connections: 4, stepsPerFrame: 64 };

export const peers: Bench = {
  names: ['peers-one', 'peers-sixteen', 'peers-sixteen-streaming', 'peers-batches', 'peers'],
  about:
    'what other stores are measured by: 430-byte JSON steps, 1 and 16 clients that wait for each ack; 16 that do not; batches of 64, 4 clients',
  engines: ['sqlite', 'postgres'],
  onlyWhenNamed: true,
  async run(run) {
    const server = await run.resources.server('real', run.engine);
    const one = await measure(run, server, ONE);
    const sixteen = await measure(run, server, SIXTEEN);
    const batches = await measure(run, server, BATCHES);
    // Comes last, because it leaves a large database. Other systems have no figure for it.
    const streaming = await measure(run, server, { ...SIXTEEN, window: 256 });
    const waits = one.seen.map(({ p50Ms }) => p50Ms[0]!);
    const steps = (bench: string, measured: Measured, others: string, aim?: string) => {
      const about: Comparison = { bench, unit: 'steps/s', note: `${costNote(measured.seen)}; ${others}` };
      return figure(run, aim === undefined ? about : { ...about, aim }, measured.rates);
    };
    return [
      figure(run, { bench: 'peers-one', unit: 'ms', note: OTHERS.one }, waits),
      steps('peers-sixteen', sixteen, OTHERS.sixteen, '>= 14550'),
      steps('peers-sixteen-streaming', streaming, OTHERS.sixteen),
      steps('peers-batches', batches, OTHERS.batches, run.engine === 'sqlite' ? '>= 101000' : '>= 61000'),
    ];
  },
};

interface Measured {
  readonly rates: readonly number[];
  readonly seen: readonly Ingested[];
}

async function measure(run: Run, server: BenchServer, load: Load): Promise<Measured> {
  const seen: Ingested[] = [];
  const { rates } = await alternate(run, {
    rates: () => ingest(run, server, load, { seen: (figures) => seen.push(figures) }),
  });
  return { rates, seen };
}
