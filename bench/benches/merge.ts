import { alternate, type Bench, compare, median, type Result } from '../bench.ts';
import { rawStepBytes } from '../database_size.ts';
import { BATCH, type Ingested, ingest, SINGLE } from './ingest.ts';

/** The raw bytes may be as many as are written in this time. */
const BACKLOG_SECONDS = 5;

export const merge: Bench = {
  names: ['merge'],
  about:
    'p99 of an ack, 16 streams that wait for each, while all steps are merged; against a server that does not merge',
  engines: ['sqlite', 'postgres'],
  async run(run): Promise<Result[]> {
    const merging = await run.resources.server('real', run.engine);
    const raw = await run.resources.server('real', run.engine, undefined, { mergeIdleMs: 0 });
    const load = { ...SINGLE, window: 1 };
    const p99s: Record<'merging' | 'raw', number[]> = { merging: [], raw: [] };
    const seen = (name: keyof typeof p99s) => (figures: Ingested) => {
      p99s[name].push(median(figures.p99Ms));
    };
    const rates = await alternate(run, {
      merging: () => ingest(run, merging, load, { seen: seen('merging') }),
      raw: () => ingest(run, raw, load, { seen: seen('raw') }),
    });
    const note = `${Math.round(median(rates.merging))} appends/s; without merging ${Math.round(median(rates.raw))}`;
    return [compare(run, { bench: 'merge', aim: '<= 1.5', unit: 'ms', note }, p99s.merging, p99s.raw)];
  },
};

export const mergeBacklog: Bench = {
  names: ['merge-backlog'],
  about: `MB of steps that are not merged yet, at the end of ingest-batch; against what is sent in ${BACKLOG_SECONDS} s of it`,
  engines: ['sqlite', 'postgres'],
  async run(run): Promise<Result[]> {
    const raw: number[] = [];
    const sent: number[] = [];
    await alternate(run, {
      'ingest-batch': async () => {
        const server = await run.resources.server('real', run.engine);
        const rate = await ingest(run, server, BATCH, {
          seen({ stepsPerSecond, frameBytes }) {
            sent.push(((stepsPerSecond * frameBytes) / BATCH.stepsPerFrame / 1e6) * BACKLOG_SECONDS);
          },
        });
        raw.push((await rawStepBytes(server.database)) / 1e6);
        await server.stop();
        return rate;
      },
    });
    return [compare(run, { bench: 'merge-backlog', aim: '<= 1', unit: 'MB' }, raw, sent)];
  },
};
