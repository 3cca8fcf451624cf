import type { Caller } from '../../domain/caller.ts';
import type { RolloutsOf } from '../../store/contract/run.ts';
import type { App } from '../../stream/app.ts';

/**
 * Cancels the rollouts of a marked run or stage in batches. If the call ends before the last batch, maintenance
 * continues, also after a restart. Returns how many rollouts any process cancelled since the mark. Reopening the run or
 * stage ends the cancellation early. Errors: RUN_NOT_FOUND, STAGE_NOT_FOUND, SERVER_DRAINING.
 */
export async function cancelRollouts(app: App, caller: Caller, of: RolloutsOf): Promise<bigint> {
  let cancelled = 0n;
  try {
    for (let more = true; more; ) {
      app.drain.throwIfBegun();
      const next = await app.store.cancelNextRollouts(caller.namespace, of);
      cancelled = next?.cancelled ?? cancelled;
      more = next?.more ?? false;
    }
    return cancelled;
  } catch (error) {
    app.maintenance.cancelSoon();
    throw error;
  }
}
