import { AnabranchError } from '../../domain/errors.ts';
import type { AppendStore } from './append.ts';
import type { EnvironmentStore } from './environment.ts';
import type { ExperimentStore } from './experiment.ts';
import type { GroupStore } from './group.ts';
import type { MetricStore } from './metric.ts';
import type { RolloutStore } from './rollout.ts';
import type { RunStore } from './run.ts';
import type { StageStore } from './stage.ts';
import type { StateStore } from './state.ts';
import type { StatusChangeStore } from './status_change.ts';
import type { StepStore } from './step.ts';
import type { SummaryStore } from './summary.ts';
import type { TagStore } from './tag.ts';
import type { TaskStore } from './task.ts';
import type { TrajectoryStore } from './trajectory.ts';

/**
 * THE CONTRACT of the store, one file a noun. Both engines keep it; one suite (test/store) proves it on both.
 *
 * What holds for every method:
 * - It is one transaction, all or nothing (D3), and durable when it resolves (D1). What readers see is durable (D2). Deletions are several transactions:
 *   see `deleteTrajectory` and `purgeDeleted`.
 * - It binds the namespace that it is given; rows of other namespaces do not exist for it (N1).
 * - It refuses by throwing `AnabranchError` with the reasons named at the method. Besides those any method may throw STORAGE_FULL and
 *   DATABASE_UNAVAILABLE; after the latter a write may have happened. Anything else that is thrown is a fault of the service.
 * - Positions are bigint. Order is by number or key, never by time. Times are the database's.
 */
export interface Store
  extends TrajectoryStore,
    AppendStore,
    StepStore,
    StateStore,
    TagStore,
    ExperimentStore,
    RunStore,
    StageStore,
    MetricStore,
    StatusChangeStore,
    TaskStore,
    GroupStore,
    RolloutStore,
    EnvironmentStore,
    SummaryStore {
  /** For people: engine and place, without secrets (`sqlite .anabranch/data.db`). */
  readonly description: string;
  /**
   * Returns this store for one call. When the signal is aborted its methods reject with the signal's reason, and statements that run for them end
   * within 100 ms. A write may have happened all the same. `append` and `claimRollouts` serve several callers and are not ended.
   */
  within(call: CallScope): Store;
  /** Shares the serving thread between large reads and everything else. */
  readonly turns: Turns;
  /** Resolves if the database answers. */
  ping(): Promise<void>;
  /** Ends all work and lets go of the database. Idempotent. */
  close(): Promise<void>;
}

/** Turns for work on large results. */
export interface Turns {
  /** To be awaited before such work; undefined: it may begin at once. What is done before the event loop turns belongs to the turn. */
  take(): Promise<void> | undefined;
}

/** One call, as far as the store needs to know it. */
export interface CallScope {
  /** Aborted when the answer is no longer wanted: the caller has left, or its deadline has passed. */
  readonly signal: AbortSignal;
}

/** A store that cannot be opened: the message tells people why and what to do. */
export class StoreOpenError extends Error {
  override readonly name = 'StoreOpenError';
}

/** DATABASE_UNAVAILABLE: the database has answered nobody for seconds. Whoever waits for it need not find that out again. */
export class DatabaseSilent extends AnabranchError {}

/** DATABASE_UNAVAILABLE for this work alone: other transactions stood in its way. Nothing of it was written. */
export class Contended extends AnabranchError {}

/** Whether work failed for a reason that any other work meets too: trying its parts alone would not help. */
export function isOutage(error: unknown): boolean {
  if (!(error instanceof AnabranchError) || error instanceof Contended) return false;
  return error.reason === 'DATABASE_UNAVAILABLE' || error.reason === 'STORAGE_FULL';
}
