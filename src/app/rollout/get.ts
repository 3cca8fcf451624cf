import type { Caller } from '../../domain/caller.ts';
import { rolloutNotFound } from '../../domain/errors.ts';
import type { RolloutRecord } from '../../store/contract/rollout.ts';
import type { App } from '../app.ts';

/** Errors: ROLLOUT_NOT_FOUND. */
export async function getRollout(
  app: App,
  caller: Caller,
  { rolloutId }: { readonly rolloutId: string },
): Promise<RolloutRecord> {
  const found = await app.store.getRollout(caller.namespace, rolloutId);
  if (found === undefined) throw rolloutNotFound(rolloutId);
  return found;
}
