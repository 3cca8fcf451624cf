import type { Caller } from '../../domain/caller.ts';
import { parseDigest } from '../../domain/ids.ts';
import type { StateInfo } from '../../store/contract/state.ts';
import type { App } from '../app.ts';

/** S6: which are here, in the order asked for, each once; renews their time. */
export async function batchGetStates(
  app: App,
  caller: Caller,
  args: { readonly digests: readonly string[] },
): Promise<StateInfo[]> {
  const digests = new Set(args.digests.map((digest, i) => parseDigest(digest, `digests[${i}]`)));
  return app.store.findStates(caller.namespace, [...digests], true);
}
