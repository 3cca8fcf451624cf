import type { Caller } from '../../domain/caller.ts';
import type { Rollout } from '../../domain/rollout.ts';
import type { RolloutChanges } from '../../store/contract/rollout.ts';
import type { App } from '../app.ts';

export interface UpdateRolloutArgs {
  readonly rolloutId: string;
  /** Undefined: the last one that began. */
  readonly attempt: number | undefined;
  /** What the mask names, or a phase; at least one. */
  readonly changes: RolloutChanges;
}

/** L5: no status moves by it. Errors: ROLLOUT_NOT_FOUND, LEASE_LOST. */
export async function setRolloutPhase(
  app: App,
  caller: Caller,
  args: {
    readonly rolloutId: string;
    readonly attempt: number;
    readonly phase: string;
    /** Undefined: it stays. */
    readonly message: string | undefined;
  },
): Promise<Rollout> {
  const { rolloutId, attempt, phase, message } = args;
  const changes = { phase, ...(message === undefined ? {} : { statusMessage: message }) };
  return updateRollout(app, caller, { rolloutId, attempt, changes });
}

/**
 * Labels and environments are replaced, metrics and timings merged by key (FM7). Errors: ROLLOUT_NOT_FOUND, LEASE_LOST, NO_ATTEMPT,
 * ENVIRONMENT_NOT_FOUND.
 */
export async function updateRollout(app: App, caller: Caller, args: UpdateRolloutArgs): Promise<Rollout> {
  const { rolloutId, attempt, changes } = args;
  const { environmentIds } = changes;
  const distinct = environmentIds && { environmentIds: [...new Set(environmentIds)] };
  return app.store.updateRollout(caller.namespace, rolloutId, attempt, { ...changes, ...distinct });
}
