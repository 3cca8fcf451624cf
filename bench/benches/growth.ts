import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { alternate, type Bench, compare } from '../bench.ts';
import { runProgram } from '../processes.ts';
import type { DriverFigures, DriverSettings } from '../programs/driver.ts';
import { ingest, SINGLE } from './ingest.ts';

/** Beyond the row keys that the service assigns in this bench. */
const FAR_KEYS = 1_000_000_000;

export const growth: Bench = {
  names: ['growth'],
  about: 'ingest-single with 10 million steps stored, each with its state; against an empty store',
  engines: ['sqlite', 'postgres'],
  onlyWhenNamed: true,
  async run(run) {
    const full = await run.resources.emptySchema(run.engine);
    run.showProgress(`loading ${run.growthSteps} steps`);
    const { perSecond } = await runProgram<DriverFigures>('driver', {
      task: 'load',
      database: full,
      payload: 'step-with-state',
      firstTree: FAR_KEYS,
      warmupSeconds: 0,
      seconds: 0,
      steps: run.growthSteps,
    } satisfies DriverSettings);
    // The loaded gigabytes are still being written to disk, which would be measured instead.
    run.showProgress('waiting until it is on the disk');
    await promisify(execFile)('sync');
    const grown = await run.resources.server('real', run.engine, full);
    const empty = await run.resources.server('real', run.engine);
    const samples = await alternate(run, {
      grown: () => ingest(run, grown, SINGLE),
      empty: () => ingest(run, empty, SINGLE),
    });
    const note = `${run.growthSteps.toLocaleString('en-US')} steps, loaded at ${Math.round(perSecond).toLocaleString('en-US')} a second`;
    return [compare(run, { bench: 'growth', aim: '>= 0.9', unit: 'steps/s', note }, samples.grown, samples.empty)];
  },
};
