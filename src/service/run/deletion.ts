import type { RunDeletion } from '../../store/contract/experiment.ts';
import type { App } from '../../stream/app.ts';

/** Announces a deletion of a run or experiment, so that its followers and watchers end at once (B4). */
export function announceDeletion(app: App, { keys, runs, trajectories }: RunDeletion) {
  for (const key of keys) {
    app.lineages.forget(key);
    app.changes.announce(key);
  }
  app.maintenance.purgeSoon();
  return { deletedRuns: runs, deletedTrajectories: trajectories };
}
