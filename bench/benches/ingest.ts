import { randomUUID } from 'node:crypto';
import { createAuthority, writeIssued } from '../../test/support/certificates.ts';
import { startCollector } from '../../test/support/collector.ts';
import { alternate, type Bench, compare, median, type Result, type Run } from '../bench.ts';
import { runProgram } from '../processes.ts';
import type { AppendFigures, AppendSettings } from '../programs/append.ts';
import type { DriverFigures, DriverSettings } from '../programs/driver.ts';
import type { BenchServer } from '../resources.ts';

export type Load = Omit<AppendSettings, 'address' | 'ca' | 'token' | 'trajectories' | 'warmupSeconds' | 'seconds'> & {
  readonly streams: number;
};

export interface IngestOptions {
  /** Called with further figures. */
  readonly seen?: (figures: Ingested) => void;
  /** Runs at the same time as the load, on its trajectories. */
  readonly meanwhile?: (trajectories: readonly string[]) => Promise<void>;
}

/** Measures the steps per second that a server acks on new trajectories. */
export async function ingest(
  run: Run,
  server: BenchServer,
  { streams, ...settings }: Load,
  { seen, meanwhile }: IngestOptions = {},
): Promise<number> {
  // A bare handler has no trajectories, so it accepts any ids.
  const trajectories =
    server.kind === 'bare' ? Array.from({ length: streams }, () => randomUUID()) : await server.trajectories(streams);
  const { warmupSeconds, seconds } = run;
  const { address, ca, token } = server;
  const all: AppendSettings = { ...settings, address, ca, token, trajectories, warmupSeconds, seconds };
  const cpu = server.cpuSeconds();
  const [figures] = await Promise.all([runProgram<AppendFigures>('append', all), meanwhile?.(trajectories)]);
  seen?.({ ...figures, serverCpuMicros: ((server.cpuSeconds() - cpu) / figures.allSteps) * 1e6 });
  return figures.stepsPerSecond;
}

export interface Ingested extends AppendFigures {
  /** CPU of the server (and Postgres) per step, in microseconds. */
  readonly serverCpuMicros: number;
}

export const SINGLE: Load = { streams: 16, connections: 4, window: 256, stepsPerFrame: 1, payload: 'step-with-state' };
export const BATCH: Load = { streams: 4, connections: 4, window: 1024, stepsPerFrame: 64, payload: 'step-with-state' };

export const ingestSingle: Bench = {
  names: ['ingest-single', 'ingest-single-bare'],
  about:
    'acked steps/s, 16 streams on 4 connections, 256 unacked, one step a message; against a null store, and a bare handler',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const real = await run.resources.server('real', run.engine);
    const over = await run.resources.server('null', run.engine);
    const bare = await run.resources.server('bare', run.engine);
    const seen: Record<'real' | 'null' | 'bare', Ingested[]> = { real: [], null: [], bare: [] };
    const samples = await alternate(run, {
      real: () => ingest(run, real, SINGLE, { seen: (figures) => seen.real.push(figures) }),
      'null store': () => ingest(run, over, SINGLE, { seen: (figures) => seen.null.push(figures) }),
      'bare handler': () => ingest(run, bare, SINGLE, { seen: (figures) => seen.bare.push(figures) }),
    });
    const aim = run.engine === 'sqlite' ? '>= 0.65' : '>= 0.5';
    const note = `${costNote(seen.real)}; null store ${cpuOf(seen.null)}, bare handler ${cpuOf(seen.bare)}`;
    const unit = 'steps/s';
    return [
      compare(run, { bench: 'ingest-single', aim, unit, note }, samples.real, samples['null store']),
      compare(run, { bench: 'ingest-single-bare', aim: '>= 0.45', unit }, samples.real, samples['bare handler']),
    ];
  },
};

export const ingestSingleTls: Bench = {
  names: ['ingest-single-tls'],
  about: '`ingest-single` over TLS, against the same without',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    // This process trusts the authorities of all rounds, so each needs a name of its own.
    const authority = createAuthority(randomUUID());
    const tls = { ...writeIssued(authority.issue()), ca: authority.cert };
    const over = await run.resources.server('real', run.engine, undefined, { tls });
    const plain = await run.resources.server('real', run.engine);
    const seen: Record<'over' | 'plain', Ingested[]> = { over: [], plain: [] };
    const samples = await alternate(run, {
      TLS: () => ingest(run, over, SINGLE, { seen: (figures) => seen.over.push(figures) }),
      plain: () => ingest(run, plain, SINGLE, { seen: (figures) => seen.plain.push(figures) }),
    });
    const note = `${costNote(seen.over)}; without it server ${cpuOf(seen.plain)}`;
    const row = { bench: 'ingest-single-tls', aim: '>= 0.8', unit: 'steps/s', note } as const;
    return [compare(run, row, samples.TLS, samples.plain)];
  },
};

export const ingestSingleTraced: Bench = {
  names: ['ingest-single-traced'],
  about: '`ingest-single` while traces of 1 % of the calls are sent to a collector; against the same without',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    await using collector = await startCollector();
    const otel = {
      OTEL_EXPORTER_OTLP_ENDPOINT: collector.url,
      OTEL_TRACES_SAMPLER: 'parentbased_traceidratio',
      OTEL_TRACES_SAMPLER_ARG: '0.01',
    };
    const traced = await run.resources.server('real', run.engine, undefined, { otel });
    const plain = await run.resources.server('real', run.engine);
    const samples = await alternate(run, {
      traced: () => ingest(run, traced, SINGLE),
      plain: () => ingest(run, plain, SINGLE),
    });
    await traced.stop();
    const row = { bench: 'ingest-single-traced', aim: '>= 0.97', unit: 'steps/s' } as const;
    return [compare(run, row, samples.traced, samples.plain)];
  },
};

export const ingestBatch: Bench = {
  names: ['ingest-batch'],
  about:
    'acked steps/s, 4 streams, 64 steps a message; against the same rows by the driver alone, 1000 steps a commit (Postgres: binary COPY)',
  engines: ['sqlite', 'postgres'],
  async run(run): Promise<Result[]> {
    const server = await run.resources.server('real', run.engine);
    const bulk = await run.resources.emptySchema(run.engine);
    const seen: Ingested[] = [];
    const samples = await alternate(run, {
      real: () => ingest(run, server, BATCH, { seen: (figures) => seen.push(figures) }),
      driver: (round) => insertSteps(run, bulk, round),
    });
    return [
      compare(
        run,
        { bench: 'ingest-batch', aim: '>= 2.5', unit: 'steps/s', note: costNote(seen) },
        samples.real,
        samples.driver,
      ),
    ];
  },
};

async function insertSteps(run: Run, database: string, round: number): Promise<number> {
  const { warmupSeconds, seconds } = run;
  const settings: DriverSettings = {
    task: 'insert',
    database,
    payload: 'step-with-state',
    firstTree: round * 100 + 1,
    warmupSeconds,
    seconds,
  };
  return (await runProgram<DriverFigures>('driver', settings)).perSecond;
}

export const fanIn: Bench = {
  names: ['fan-in', 'fan-in-fairness'],
  about:
    'acked steps/s with 1,000 streams on 10 connections; against 16 streams on 4; and the slowest stream against the fastest',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const server = await run.resources.server('real', run.engine);
    const many: Load = { ...SINGLE, streams: 1000, connections: 10, window: 16 };
    const few: Load = { ...SINGLE };
    const slowest: number[] = [];
    const fastest: number[] = [];
    const samples = await alternate(run, {
      '1,000 streams': () =>
        ingest(run, server, many, {
          seen(figures) {
            slowest.push(figures.slowest);
            fastest.push(figures.fastest);
          },
        }),
      '16 streams': () => ingest(run, server, few),
    });
    return [
      compare(
        run,
        { bench: 'fan-in', aim: '>= 0.8', unit: 'steps/s' },
        samples['1,000 streams'],
        samples['16 streams'],
      ),
      compare(run, { bench: 'fan-in-fairness', aim: '>= 0.2', unit: 'steps' }, slowest, fastest),
    ];
  },
};

/** Sibling rollouts of a deterministic environment reach the same states step by step, at about the same time. */
export const sharedStates: Bench = {
  names: ['shared-states'],
  about: 'acked steps/s of 12 streams that send the same states; against 12 streams with states of their own',
  engines: ['sqlite', 'postgres'],
  async run(run) {
    const server = await run.resources.server('real', run.engine);
    const siblings: Load = { ...SINGLE, streams: 12, connections: 12 };
    // Each round uses new states, so that none is stored already.
    let states = 0;
    const others = () => {
      states += siblings.streams;
      return states;
    };
    const samples = await alternate(run, {
      shared: () => ingest(run, server, { ...siblings, sharedStates: others() }),
      unique: () => ingest(run, server, { ...siblings, statesFrom: others() }),
    });
    return [compare(run, { bench: 'shared-states', aim: '>= 1', unit: 'steps/s' }, samples.shared, samples.unique)];
  },
};

/** Describes the size of a message and the CPU cost of a step. */
export function costNote(seen: readonly Ingested[]): string {
  const client = median(seen.map(({ clientCpuSeconds, ackedSteps }) => (clientCpuSeconds / ackedSteps) * 1e6));
  return `${seen[0]?.frameBytes ?? 0} B a message; CPU a step: server ${cpuOf(seen)}, client ${client.toFixed(1)} µs`;
}

function cpuOf(seen: readonly Ingested[]): string {
  return `${median(seen.map(({ serverCpuMicros }) => serverCpuMicros)).toFixed(1)} µs`;
}
