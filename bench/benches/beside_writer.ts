import { alternate, compare, type Result, type Run } from '../bench.ts';
import type { BenchServer } from '../resources.ts';
import { type Ingested, ingest, type Load } from './ingest.ts';

/** Bound of the slowest append, in milliseconds above the slowest append of the writer alone. */
export const MORE_MS = 50;

/** The writer waits for each ack, so every delay of the server reduces its rate. */
export const WRITER: Load = { streams: 1, connections: 1, window: 1, stepsPerFrame: 1, payload: 'step-with-state' };

/** What a server does beside the writer. */
export interface BesideWriter {
  readonly bench: string;
  /** Runs before each measurement beside the writer. */
  readonly prepare?: () => Promise<void>;
  readonly meanwhile: () => Promise<void>;
  /** Returns what the report says beside the figure. */
  readonly note: () => string;
}

/** Measures a writer beside other work, against the same writer alone: its appends, and its slowest append. */
export async function measureBeside(run: Run, server: BenchServer, work: BesideWriter): Promise<Result[]> {
  const slowest: Record<'alone' | 'beside', number[]> = { alone: [], beside: [] };
  const seen =
    (name: keyof typeof slowest) =>
    ({ maxMs }: Ingested) => {
      slowest[name].push(maxMs[0]!);
    };
  const samples = await alternate(run, {
    alone: () => ingest(run, server, WRITER, { seen: seen('alone') }),
    beside: async () => {
      await work.prepare?.();
      return ingest(run, server, WRITER, { seen: seen('beside'), meanwhile: work.meanwhile });
    },
  });
  const { bench } = work;
  const bound = Math.max(...slowest.alone) + MORE_MS;
  return [
    compare(run, { bench, aim: '>= 0.5', unit: 'appends/s', note: work.note() }, samples.beside, samples.alone),
    compare(run, { bench: `${bench}-slowest`, aim: '<= 1', unit: 'ms' }, [Math.max(...slowest.beside)], [bound]),
  ];
}
