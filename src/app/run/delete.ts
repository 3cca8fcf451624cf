import type { Caller } from '../../domain/caller.ts';
import type { BookDeletion, BranchPolicy } from '../../store/contract/book_deletion.ts';
import type { App } from '../app.ts';

/** B4. Whoever follows or watches what is gone is told at once. Errors: RUN_NOT_FOUND, HAS_BRANCHES, RUN_ACTIVE. */
export async function deleteRun(
  app: App,
  caller: Caller,
  args: { readonly runId: string; readonly onBranches: BranchPolicy; readonly cancelLive?: boolean },
): Promise<BookDeletion> {
  return afterDeletion(app, await app.store.deleteRun(caller.namespace, args.runId, args.onBranches, args.cancelLive));
}

/** B4. Errors: EXPERIMENT_NOT_FOUND, HAS_BRANCHES, RUN_ACTIVE. */
export async function deleteExperiment(
  app: App,
  caller: Caller,
  args: { readonly experimentId: string; readonly onBranches: BranchPolicy; readonly cancelLive?: boolean },
): Promise<BookDeletion> {
  return afterDeletion(
    app,
    await app.store.deleteExperiment(caller.namespace, args.experimentId, args.onBranches, args.cancelLive),
  );
}

function afterDeletion(app: App, deletion: BookDeletion): BookDeletion {
  for (const key of deletion.keys) {
    app.lineages.forget(key);
    app.changes.announce(key);
  }
  app.maintenance.purgeSoon();
  return deletion;
}
