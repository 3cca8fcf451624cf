import type { ClaimRequest } from '../../store/contract/rollout.ts';
import type { App } from '../app.ts';
import { findRun, findStage } from '../find.ts';
import { LookSchedule } from '../look_schedule.ts';
import type { Claimed } from './claim_collector.ts';

export interface ClaimCall {
  readonly request: Omit<ClaimRequest, 'trajectories'>;
  /** At least 1. */
  readonly maxRollouts: number;
  /** 0: does not wait. */
  readonly waitMs: number;
  /** Ends the wait when it is aborted. */
  readonly signal: AbortSignal;
}

const NOTHING: Claimed = { kind: 'claimed', claims: [], drained: false };

/**
 * Q2: claims rollouts. Concurrent claims share a transaction. With `waitMs`, a claim that found nothing is repeated
 * after hints, and when a delayed rollout becomes claimable. The wait ends early if no rollout can become
 * claimable (`drained`). Errors: RUN_NOT_FOUND, STAGE_NOT_FOUND, REQUEST_ID_REUSED.
 */
export async function claimRollouts(app: App, call: ClaimCall): Promise<Claimed> {
  const { request, maxRollouts, waitMs, signal } = call;
  const claim = async (): Promise<Claimed> => {
    const trajectories = Array.from({ length: maxRollouts }, () => ({ id: app.ids.uuid(), uid: app.ids.uid() }));
    return (await app.claims.claim({ ...request, trajectories }, signal)) ?? NOTHING;
  };
  const begun = performance.now();
  const first = await claim();
  const left = waitMs - (performance.now() - begun);
  if (isFinal(first) || left <= 0) return first;
  return repeat(app, await hintsOf(app, request), claim, left, signal);
}

/** Whether the result is returned without a wait. */
function isFinal({ claims, drained }: Claimed): boolean {
  return claims.length > 0 || drained;
}

async function repeat(
  app: App,
  subscribe: (listener: () => void) => () => void,
  claim: () => Promise<Claimed>,
  waitMs: number,
  signal: AbortSignal,
): Promise<Claimed> {
  const { claimRestMs, pollMs, progressMs } = app.settings;
  const schedule = new LookSchedule(app.changes, { watchMs: claimRestMs, pollMs, progressMs });
  schedule.listen(subscribe, app.drain, signal);
  const timer = setTimeout(() => schedule.end(), waitMs).unref();
  app.waits.claims += 1;
  try {
    let last = NOTHING;
    // Claims once more before it waits, because rollouts may have arrived before the subscription.
    while (!schedule.ended) {
      schedule.beginLook();
      last = await claim();
      if (isFinal(last)) return last;
      const { nextInMs } = last;
      const due = nextInMs === undefined ? undefined : setTimeout(() => schedule.hint(), nextInMs).unref();
      await schedule.nextLook();
      clearTimeout(due);
    }
    return last;
  } finally {
    app.waits.claims -= 1;
    clearTimeout(timer);
    schedule.stop();
  }
}

/** Returns how to subscribe to hints of the requested run or stage, or of all. */
async function hintsOf(
  app: App,
  { caller, runId, stageId }: Pick<ClaimRequest, 'caller' | 'runId' | 'stageId'>,
): Promise<(listener: () => void) => () => void> {
  if (stageId !== undefined) {
    const { run } = await findStage(app, caller, stageId);
    return (listener) => app.changes.onRun(run.key, listener);
  }
  if (runId !== undefined) {
    const run = await findRun(app, caller, runId);
    return (listener) => app.changes.onRun(run.key, listener);
  }
  return (listener) => app.changes.onQueue(caller.namespace, listener);
}
