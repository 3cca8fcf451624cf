import { expect, it } from 'vitest';
import type { ClaimOutcome, ClaimRequest } from '../../src/store/contract/rollout.ts';
import { createClaimCollector } from '../../src/stream/rollouts/claim_collector.ts';
import { logger } from '../store/on_store.ts';

/** More than half of the rollouts that one transaction may claim. */
const MANY = 600;
const NEVER = new AbortController().signal;
const NOTHING: ClaimOutcome = { kind: 'claimed', claims: [], drained: false };

it('MS5: claims that do not fit into a transaction wait, those of several namespaces in turn', async () => {
  const calls: string[][] = [];
  const claimRollouts = async (requests: readonly ClaimRequest[]) => {
    calls.push(requests.map(({ caller }) => caller.namespace));
    return requests.map(() => NOTHING);
  };
  const collector = createClaimCollector({ claimRollouts }, logger);
  const claim = (namespace: string, rollouts: number, signal = NEVER) => {
    const trajectories = Array.from({ length: rollouts }, () => ({ id: '', uid: '' }));
    const caller = { namespace, actor: namespace };
    return collector.claim({ caller, trajectories } as Partial<ClaimRequest> as ClaimRequest, signal);
  };
  const gone = AbortSignal.abort();
  const left = claim('many', MANY, gone);
  await Promise.all([claim('many', MANY), claim('many', MANY), claim('many', MANY), claim('one', 1), claim('one', 1)]);
  expect(await left).toBeUndefined();
  expect(calls).toEqual([['many', 'one'], ['many', 'one'], ['many']]);
  await collector.idle();
});
