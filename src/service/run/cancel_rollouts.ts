import type { Caller } from '../../domain/caller.ts';
import type { RolloutsOf } from '../../store/contract/run.ts';
import type { App } from '../../stream/app.ts';

/**
 * Cancels the rollouts of a run or stage that was marked when it was cancelled, batch by batch. If the call ends before
 * the last batch, maintenance does the rest, also after a restart. Returns how many rollouts were cancelled since the
 * mark, by whomever. A reopening ends it early. Errors: RUN_NOT_FOUND, STAGE_NOT_FOUND, SERVER_DRAINING.
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
