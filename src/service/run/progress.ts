import { ProgressSchema, type Progress as WireProgress } from '../../../gen/es/anabranch/v1/run_pb.js';
import type { Caller } from '../../domain/caller.ts';
import { progressOf } from '../../domain/progress.ts';
import type { Run } from '../../domain/run.ts';
import type { App } from '../../stream/app.ts';
import { sizerOf } from '../answer/size.ts';
import { fromProgress } from './messages.ts';

export const progressBytes = sizerOf(ProgressSchema);

/** Returns the progress of runs, in their order (M2). Uses a fixed number of statements (K-C6). */
export async function progressesOf(app: App, caller: Caller, runs: readonly Run[]): Promise<WireProgress[]> {
  if (runs.length === 0) return [];
  const keys = runs.map(({ key }) => key);
  const tallies = await app.store.tallyRuns(caller.namespace, keys);
  return runs.map(({ key, id, status, plan }) => {
    const tally = tallies.get(key);
    if (tally === undefined) throw new Error(`the store returned no tally of run ${id}`);
    return fromProgress(progressOf(status, plan, tally));
  });
}
