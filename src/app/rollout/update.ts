import type { Caller } from '../../domain/caller.ts';
import { parseUuid } from '../../domain/ids.ts';
import { LIMITS } from '../../domain/limits.ts';
import type { Rollout } from '../../domain/rollout.ts';
import { requireJson, requireText } from '../../domain/text.ts';
import type { RolloutChanges } from '../../store/contract/rollout.ts';
import type { App } from '../app.ts';
import { requireLabels, requireNames } from '../run/fields.ts';
import { requireMetrics } from '../trajectory/incoming.ts';

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
  if (message !== undefined) requireText(message, 'message');
  const changes = { phase, ...(message === undefined ? {} : { statusMessage: message }) };
  return updateRollout(app, caller, { rolloutId, attempt, changes });
}

/**
 * Labels and environments are replaced, metrics and timings merged by key (FM7). Errors: ROLLOUT_NOT_FOUND, LEASE_LOST, NO_ATTEMPT,
 * ENVIRONMENT_NOT_FOUND.
 */
export async function updateRollout(app: App, caller: Caller, args: UpdateRolloutArgs): Promise<Rollout> {
  const id = parseUuid(args.rolloutId, 'rollout_id');
  const { environmentIds, ...changes } = args.changes;
  requireLabels(changes.labels ?? new Map());
  requireText(changes.modelUri ?? '', 'model_uri');
  requireText(changes.statusMessage ?? '', 'status_message');
  requireText(changes.phase ?? '', 'phase');
  if (changes.metrics !== undefined) requireMetrics(changes.metrics, 'metrics');
  if (changes.timings !== undefined) requireNames(changes.timings, 'timings', LIMITS.timings);
  requireJson(changes.metadataJson ?? '', 'metadata_json');
  const environments = environmentIds?.map((each, i) => parseUuid(each, `environment_ids[${i}]`));
  return app.store.updateRollout(caller.namespace, id, args.attempt, {
    ...changes,
    ...(environments === undefined ? {} : { environmentIds: [...new Set(environments)] }),
  });
}
