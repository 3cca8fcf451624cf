import type { Caller } from '../../domain/caller.ts';
import { parseUuid } from '../../domain/ids.ts';
import type { LeaseState, LeaseToken } from '../../store/contract/rollout.ts';
import type { App } from '../app.ts';

/** A rollout by id, and the attempt that was claimed. */
export interface TokenArgs {
  readonly rolloutId: string;
  readonly attempt: number;
}

export function requireToken({ rolloutId, attempt }: TokenArgs): LeaseToken {
  return { id: parseUuid(rolloutId, 'rollout_id'), attempt };
}

/** Q2: keeps the leases that are still held, and says of each what became of it, in the order given. */
export async function heartbeatRollouts(
  app: App,
  caller: Caller,
  args: { readonly leases: readonly TokenArgs[]; readonly leaseMs: number | undefined },
): Promise<LeaseState[]> {
  const leases = args.leases.map(({ rolloutId, attempt }, i) => {
    return { id: parseUuid(rolloutId, `leases[${i}].rollout_id`), attempt };
  });
  return app.store.heartbeatRollouts(caller.namespace, leases, args.leaseMs);
}
