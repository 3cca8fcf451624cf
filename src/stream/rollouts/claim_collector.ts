import { InTurn } from '../../queue/in_turn.ts';
import type { ClaimOutcome, ClaimRequest, RolloutStore } from '../../store/contract/rollout.ts';
import { isOutage } from '../../store/contract/store.ts';
import type { Logger } from '../settings.ts';

/** Bounds of one transaction, because it holds locks. A larger request has a transaction of its own. */
const MAX_REQUESTS = 256;
const MAX_ROLLOUTS = 1000;

export type Claimed = Extract<ClaimOutcome, { kind: 'claimed' }>;

/**
 * Combines concurrent claims into one call of the store. An idle collector calls at once; during a call, requests
 * gather for the next one, those of several namespaces in turn. So many workers need about as many transactions as one
 * worker.
 */
export interface ClaimCollector {
  /** Returns undefined if the signal was aborted before the call of the store. Throws the error of this request. */
  claim(request: ClaimRequest, signal: AbortSignal): Promise<Claimed | undefined>;
  /** Resolves when no request waits and no call is in progress. */
  idle(): Promise<void>;
}

interface Waiting {
  readonly request: ClaimRequest;
  readonly signal: AbortSignal;
  readonly resolve: (claimed: Claimed | undefined) => void;
  readonly reject: (error: unknown) => void;
}

export function createClaimCollector(store: Pick<RolloutStore, 'claimRollouts'>, logger: Logger): ClaimCollector {
  const waiting = new InTurn<Waiting>();
  let running: Promise<void> | undefined;

  const run = async (): Promise<void> => {
    while (waiting.size > 0) {
      // Requests that have already arrived share the call.
      await new Promise((resolve) => setImmediate(resolve));
      const call = takeCall();
      if (call.length > 0) await serve(store, logger, call);
    }
    running = undefined;
  };

  const takeCall = (): Waiting[] => {
    const call: Waiting[] = [];
    let rollouts = 0;
    for (let next = waiting.next(); next !== undefined; next = waiting.next()) {
      const { item: one } = next;
      if (one.signal.aborted) {
        waiting.delete(next);
        one.resolve(undefined);
        continue;
      }
      const size = one.request.trajectories.length;
      if (call.length > 0 && (call.length === MAX_REQUESTS || rollouts + size > MAX_ROLLOUTS)) break;
      waiting.serve(next);
      rollouts += size;
      call.push(one);
    }
    return call;
  };

  return {
    claim: (request, signal) =>
      new Promise((resolve, reject) => {
        waiting.add(request.caller.namespace, { request, signal, resolve, reject });
        running ??= run();
      }),
    async idle() {
      while (running !== undefined) await running;
    },
  };
}

async function serve(
  store: Pick<RolloutStore, 'claimRollouts'>,
  logger: Logger,
  call: readonly Waiting[],
): Promise<void> {
  try {
    const outcomes = await store.claimRollouts(call.map(({ request }) => request));
    for (const [i, one] of call.entries()) settle(one, outcomes[i]);
  } catch (error) {
    // An outage concerns all requests. Another error may concern only one, so each is retried alone.
    if (call.length === 1 || isOutage(error)) {
      for (const { reject } of call) reject(error);
      return;
    }
    logger.warn({ err: error, requests: call.length }, 'a batch of claims failed; retrying each request alone');
    for (const one of call) await serve(store, logger, [one]);
  }
}

function settle({ resolve, reject }: Waiting, outcome: ClaimOutcome | undefined): void {
  if (outcome?.kind === 'claimed') resolve(outcome);
  else reject(outcome?.error ?? new Error('the store returned fewer outcomes than requests'));
}
