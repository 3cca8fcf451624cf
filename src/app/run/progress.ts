import type { Caller } from '../../domain/caller.ts';
import { type Progress, progressOf, type RunTally } from '../../domain/progress.ts';
import type { Run } from '../../domain/run.ts';
import { findRun } from '../../stream/find.ts';
import type { App } from '../app.ts';

/** M2. Errors: RUN_NOT_FOUND. */
export async function getProgress(app: App, caller: Caller, args: { readonly runId: string }): Promise<Progress> {
  const run = await findRun(app, caller, args.runId);
  const tallies = await app.store.tallyRuns(caller.namespace, [run.key]);
  return shownProgress(run, tallies);
}

/** How far a run is, by what was tallied of it among others. */
export function shownProgress(run: Run, tallies: ReadonlyMap<bigint, RunTally>): Progress {
  const tally = tallies.get(run.key);
  if (tally === undefined) throw new Error(`the store has tallied nothing of run ${run.id}`);
  return progressOf(run.status, run.plan, tally);
}
