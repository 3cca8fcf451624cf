import { startPgbouncer } from '../../test/support/pgbouncer.ts';
import { alternate, type Bench, compare, median, type Run } from '../bench.ts';
import { cpuSeconds } from '../processes.ts';
import type { BenchServer } from '../resources.ts';
import { ingest, type Load, SINGLE } from './ingest.ts';

/** Streams of 16 on each of three instances, and unacked steps of each stream. */
const SHARES = [6, 5, 5];
const WINDOWS = { waiting: 1, pipelined: SINGLE.window } as const;

/**
 * Measures all instances at the same time. Returns the steps per second of all of them, and adds to `micros` the CPU of
 * a step, in microseconds, of the instances and Postgres.
 */
async function ingestOn(
  run: Run,
  servers: readonly BenchServer[],
  shares: readonly number[],
  load: Load,
  micros: number[],
) {
  const pids = [...new Set(servers.flatMap((server) => server.pids))];
  const cpu = cpuSeconds(pids);
  let steps = 0;
  const each = servers.map((server, i) => {
    const share = { ...load, streams: shares[i]!, connections: 2 };
    return ingest(run, server, share, { seen: ({ allSteps }) => (steps += allSteps) });
  });
  const perSecond = (await Promise.all(each)).reduce((sum, one) => sum + one, 0);
  micros.push(((cpuSeconds(pids) - cpu) / steps) * 1e6);
  return perSecond;
}

export const instances: Bench = {
  names: ['instances-waiting', 'instances-pipelined'],
  about: 'acked steps/s of 16 streams on three instances of one database, on the same cores; against one instance',
  engines: ['postgres'],
  async run(run) {
    const first = await run.resources.server('real', run.engine);
    const all = [first];
    while (all.length < SHARES.length) all.push(await run.resources.server('real', run.engine, first.database));
    const results = [];
    for (const [name, window] of Object.entries(WINDOWS)) {
      const load = { ...SINGLE, window };
      const micros = { three: [] as number[], one: [] as number[] };
      const samples = await alternate(run, {
        three: () => ingestOn(run, all, SHARES, load, micros.three),
        one: () => ingestOn(run, [first], [16], load, micros.one),
      });
      const [three, one] = [micros.three, micros.one].map((each) => median(each).toFixed(1));
      const note = `CPU a step, with Postgres: ${three} µs, one instance ${one} µs`;
      const of = { bench: `instances-${name}`, aim: '>= 0.6', unit: 'steps/s', note };
      results.push(compare(run, of, samples.three, samples.one));
    }
    return results;
  },
};

export const pooled: Bench = {
  names: ['pooled'],
  about: 'acked steps/s of ingest-single through pgbouncer in transaction mode; against the same without',
  engines: ['postgres'],
  async run(run) {
    const direct = await run.resources.server('real', run.engine);
    await using pooler = await startPgbouncer(direct.database, { poolSize: 20 });
    const behind = await run.resources.server('real', run.engine, pooler.url);
    const samples = await alternate(run, {
      pooled: () => ingest(run, behind, SINGLE),
      direct: () => ingest(run, direct, SINGLE),
    });
    await behind.stop();
    return [compare(run, { bench: 'pooled', aim: '>= 0.9', unit: 'steps/s' }, samples.pooled, samples.direct)];
  },
};
