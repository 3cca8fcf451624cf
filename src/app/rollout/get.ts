import type { Caller } from '../../domain/caller.ts';
import { rolloutNotFound } from '../../domain/errors.ts';
import { parseUuid } from '../../domain/ids.ts';
import type { RolloutRecord } from '../../store/contract/rollout.ts';
import type { App } from '../app.ts';

/** Errors: ROLLOUT_NOT_FOUND. */
export async function getRollout(
  app: App,
  caller: Caller,
  { rolloutId }: { readonly rolloutId: string },
): Promise<RolloutRecord> {
  const id = parseUuid(rolloutId, 'rollout_id');
  const found = await app.store.getRollout(caller.namespace, id);
  if (found === undefined) throw rolloutNotFound(id);
  return found;
}
