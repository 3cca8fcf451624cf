import { runNotFound, stageNotFound } from '../../domain/errors.ts';
import type { ClaimRequest } from '../../store/contract/rollout.ts';
import type { App } from '../app.ts';
import { LookSchedule } from '../look_schedule.ts';
import type { Claimed } from './claim_collector.ts';

export interface ClaimCall {
  readonly request: Omit<ClaimRequest, 'trajectories'>;
  /** At least 1. */
  readonly maxRollouts: number;
  /** 0: not at all. */
  readonly waitMs: number;
  /** Aborted when the caller is gone: waiting ends at once. */
  readonly signal: AbortSignal;
}

const NOTHING: Claimed = { kind: 'claimed', claims: [], drained: false };

/**
 * Q2: claims together with all others who ask at this moment. With `waitMs` it is a long poll: hints, polls, and the
 * time at which a delayed rollout can be claimed mean "ask again". It ends early when nothing more can come
 * (`drained`). Errors: RUN_NOT_FOUND, STAGE_NOT_FOUND, REQUEST_ID_REUSED.
 */
export async function claimRollouts(app: App, call: ClaimCall): Promise<Claimed> {
  const { request, maxRollouts, waitMs, signal } = call;
  const ask = async (): Promise<Claimed> => {
    const trajectories = Array.from({ length: maxRollouts }, () => ({ id: app.ids.uuid(), uid: app.ids.uid() }));
    return (await app.claims.claim({ ...request, trajectories }, signal)) ?? NOTHING;
  };
  const begun = performance.now();
  const first = await ask();
  const left = waitMs - (performance.now() - begun);
  if (isAnswer(first) || left <= 0) return first;
  return keepAsking(app, await hintsOf(app, request), ask, left, signal);
}

function isAnswer({ claims, drained }: Claimed): boolean {
  return claims.length > 0 || drained;
}

async function keepAsking(
  app: App,
  subscribe: (listener: () => void) => () => void,
  ask: () => Promise<Claimed>,
  waitMs: number,
  signal: AbortSignal,
): Promise<Claimed> {
  const { claimRestMs, pollMs, progressMs } = app.settings;
  const schedule = new LookSchedule({ watchMs: claimRestMs, pollMs, progressMs });
  schedule.listen(subscribe, app.drain, signal);
  const timer = setTimeout(() => schedule.end(), waitMs).unref();
  try {
    let last = NOTHING;
    // Once more before any waiting: what came between the first look and the subscription.
    while (!schedule.ended) {
      schedule.beginLook();
      last = await ask();
      if (isAnswer(last)) return last;
      const { nextInMs } = last;
      const due = nextInMs === undefined ? undefined : setTimeout(() => schedule.hint(), nextInMs).unref();
      await schedule.nextLook();
      clearTimeout(due);
    }
    return last;
  } finally {
    clearTimeout(timer);
    schedule.stop();
  }
}

/** How to hear of what may have come: of the run, where it is known. */
async function hintsOf(
  app: App,
  { caller: { namespace }, runId, stageId }: Pick<ClaimRequest, 'caller' | 'runId' | 'stageId'>,
): Promise<(listener: () => void) => () => void> {
  if (stageId !== undefined) {
    const stage = await app.store.getStage(namespace, { id: stageId });
    if (stage === undefined) throw stageNotFound(stageId);
    return (listener) => app.changes.subscribe(stage.run.key, listener);
  }
  if (runId !== undefined) {
    const run = await app.store.getRun(namespace, { id: runId });
    if (run === undefined) throw runNotFound(runId);
    return (listener) => app.changes.subscribe(run.key, listener);
  }
  return (listener) => app.changes.subscribeAll(listener);
}
