import { alternate, type Bench, type Comparison, compare, figure, type Run } from '../bench.ts';
import type { BenchServer } from '../resources.ts';
import { costNote, type Ingested, ingest, type Load } from './ingest.ts';

/**
 * Results of other systems for the same work on 2 cores, on 2026-11-28, from scripts that are not part of this
 * repository (see README.md). A step is 430 bytes of JSON, and a client waits for each answer. Measure them again
 * within the same quarter of an hour before you conclude anything from a ratio.
 */
const OTHERS = {
  one: 'UmaDB 0.60 ms; a Postgres table by psycopg 0.31 ms',
  sixteen: 'UmaDB 8,253/s; a Postgres table 7,246/s',
  batches: 'UmaDB 156,883/s; a Postgres table 56,456/s by executemany, 108,892/s by COPY',
};

/** The one of them that the aims are about: UmaDB, and for batches on Postgres executemany. */
const AGAINST = {
  sqlite: { oneMs: 0.6, sixteen: 8_253, batches: 156_883 },
  postgres: { oneMs: 0.6, sixteen: 8_253, batches: 56_456 },
};
const AIMS = {
  sqlite: { one: '<= 0.8', sixteen: '>= 1.2', batches: '>= 1' },
  postgres: { one: '<= 0.8', sixteen: '>= 0.7', batches: '>= 1.5' },
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
    const [against, aims] = [AGAINST[run.engine], AIMS[run.engine]];
    const steps = (bench: string, measured: Measured, others: string): Comparison => {
      return { bench, unit: 'steps/s', note: `${costNote(measured.seen)}; ${others}` };
    };
    return [
      compare(run, { bench: 'peers-one', unit: 'ms', note: OTHERS.one, aim: aims.one }, waits, [against.oneMs]),
      compare(run, { ...steps('peers-sixteen', sixteen, OTHERS.sixteen), aim: aims.sixteen }, sixteen.rates, [
        against.sixteen,
      ]),
      figure(run, steps('peers-sixteen-streaming', streaming, OTHERS.sixteen), streaming.rates),
      compare(run, { ...steps('peers-batches', batches, OTHERS.batches), aim: aims.batches }, batches.rates, [
        against.batches,
      ]),
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
