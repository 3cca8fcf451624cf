import type { Caller } from '../../domain/caller.ts';
import type { LeaseState, LeaseToken } from '../../store/contract/rollout.ts';
import type { App } from '../app.ts';

/** A rollout by id, and the attempt that was claimed. */
export interface TokenArgs {
  readonly rolloutId: string;
  readonly attempt: number;
}

export function tokenOf({ rolloutId, attempt }: TokenArgs): LeaseToken {
  return { id: rolloutId, attempt };
}

/** Q2: keeps the leases that are still held, and says of each what became of it, in the order given. */
export async function heartbeatRollouts(
  app: App,
  caller: Caller,
  args: { readonly leases: readonly TokenArgs[]; readonly leaseMs: number | undefined },
): Promise<LeaseState[]> {
  return app.store.heartbeatRollouts(caller.namespace, args.leases.map(tokenOf), args.leaseMs);
}
