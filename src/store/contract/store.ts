import type { ArchivePart, ArchiveScope, CheckedPart, ImportedParts, ImportProgress } from '../../domain/archive.ts';
import { AnabranchError } from '../../domain/errors.ts';
import type { DatabaseCounts, RunSize, VerificationProgress } from '../../domain/verification.ts';
import type { AppendStore, MergeStore } from './append.ts';
import type { ChangeStore } from './change.ts';
import type { EnvironmentStore } from './environment.ts';
import type { ExperimentStore, RunDeletion } from './experiment.ts';
import type { GroupStore } from './group.ts';
import type { JobLeaseStore } from './job_lease.ts';
import type { KeyStore } from './key.ts';
import type { StoreLoad, WorkCounts } from './load.ts';
import type { MetricStore } from './metric.ts';
import type { RetentionStore, UsageStore } from './retention.ts';
import type { RolloutStore } from './rollout.ts';
import type { RunStore } from './run.ts';
import type { StageStore } from './stage.ts';
import type { StateStore } from './state.ts';
import type { StatusChangeStore } from './status_change.ts';
import type { StepStore } from './step.ts';
import type { SummaryStore } from './summary.ts';
import type { TaskStore } from './task.ts';
import type { TokenKeyStore } from './token_key.ts';
import type { Trace } from './trace.ts';
import type { TagStore, TrajectoryStore } from './trajectory.ts';

/**
 * The contract of the store, with one file per noun. Both engines implement it, and one test suite (test/store) covers
 * both.
 * Rules for every method:
 * - A method is one transaction, all or nothing (D3), and durable when it resolves (D1). Readers see durable data only
 *   (D2). Deletions use several transactions: see `deleteTrajectory` and `purgeDeleted`.
 * - Only rows of the given namespace are visible (N1).
 * - Errors are `AnabranchError` with the reasons that the method lists. Any method may also throw STORAGE_FULL,
 *   DATABASE_READ_ONLY, DATABASE_UNAVAILABLE and STORAGE_LOST; after the last two, a write may have happened. Any other
 *   exception is a fault of the service.
 * - Positions are bigint. Rows are ordered by number or key, never by time. Times are the database's.
 */
export interface Store
  extends TrajectoryStore,
    AppendStore,
    ChangeStore,
    MergeStore,
    StepStore,
    StateStore,
    RetentionStore,
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
    SummaryStore,
    UsageStore,
    KeyStore,
    TokenKeyStore,
    JobLeaseStore {
  /** Engine and location for people, without secrets (`sqlite .anabranch/data.db`). */
  readonly description: string;
  /** Aborted with a STORAGE_LOST when the file of the database is lost. All writes fail from then on. */
  readonly lost: AbortSignal | undefined;
  /**
   * Returns this store for one call. When the signal is aborted, methods reject with its reason, and their statements
   * end within 100 ms. A write may still have happened. `append` and `claimRollouts` serve several callers and are not
   * cancelled.
   */
  within(call: CallScope): Store;
  /**
   * Calls the listener when the database is another one than before, or lacks commits that it had, as a failover can
   * cause: what was read before may be untrue. Never on SQLite. Returns a function that removes the listener.
   */
  onReplaced(listener: () => void): () => void;
  /**
   * V1: reads all rows of all namespaces, and compares them with each other. Bounded statements that block no writer.
   * What changes meanwhile is checked before or after the change, and is no fault.
   */
  verify(): AsyncGenerator<VerificationProgress, void, undefined>;
  /** V7: the namespaces that have data, in order. */
  listNamespaces(): Promise<string[]>;
  /**
   * B6: deletes everything in a namespace, part by part, and returns what each part was. Ends when its rows are
   * removed, apart from states. Errors: RUN_ACTIVE (without `cancelLive`; before anything is deleted).
   */
  deleteNamespace(namespace: string, cancelLive: boolean): AsyncGenerator<RunDeletion, void, undefined>;
  /** V4: counts rows of all namespaces. */
  countRows(): Promise<DatabaseCounts>;
  /** V4: the ten runs of the namespace with the most steps, largest first. */
  findLargestRuns(namespace: string): Promise<readonly RunSize[]>;
  /**
   * V5: reads everything of a namespace, a run or a trajectory, in short statements. Each trajectory is read up to its
   * end at the time when it is reached. Errors: RUN_NOT_FOUND, TRAJECTORY_NOT_FOUND, STEP_CORRUPT, STATE_CORRUPT.
   */
  exportArchive(namespace: string, scope: ArchiveScope): AsyncGenerator<ArchivePart, void, undefined>;
  /** V6: reads an archive on a thread, and checks all values. Errors: ARCHIVE_INVALID, and those of the chunks. */
  readArchive(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<CheckedPart, void, undefined>;
  /**
   * V6: stores an archive of the namespace, each trajectory whole or not at all. Skips what is stored already. Errors:
   * ARCHIVE_INVALID, IMPORT_CONFLICT, IMPORT_SUPERSEDED, BRANCH_TOO_DEEP.
   */
  importArchive(namespace: string, parts: ImportedParts): AsyncGenerator<ImportProgress, void, undefined>;
  /** Shares the thread of the server between large reads and everything else. */
  readonly slots: Slots;
  /**
   * SQLite: copies the write-ahead log into the database file, which loses the space that was freed. Pauses reads of
   * this process. Space that another program still reads stays until the next call. No effect on Postgres.
   */
  emptyWal(): Promise<void>;
  /**
   * SQLite: returns up to so many free pages to the file system, in one transaction. The file becomes shorter when the
   * write-ahead log is copied. No effect on Postgres. Errors: STORAGE_FULL, DATABASE_UNAVAILABLE.
   */
  cutFreePages(pages: number): Promise<void>;
  /** V8: what the store does at the moment. */
  load(): StoreLoad;
  /** V8: counts rollouts of all namespaces, in one bounded statement. */
  countWork(): Promise<WorkCounts>;
  /** Resolves if the database answers and has the schema of this program. Errors: StoreOpenError for another one. */
  ping(): Promise<void>;
  /** Ends all work and closes the database. Idempotent. */
  close(): Promise<void>;
}

/** Slots of the serving thread for work on large results. One slot is used at a time. */
export interface Slots {
  /**
   * Must be awaited before such work. Undefined means that the work may start at once. The slot ends with the iteration
   * of the event loop. Namespaces are served in turn. `writer`: who writes the results. Its own writes do not delay it.
   */
  take(namespace?: string, writer?: object): Promise<void> | undefined;
}

/** One call, as far as the store depends on it. */
export interface CallScope {
  /** Aborted when the answer is no longer needed: the caller has disconnected, or its deadline has passed. */
  readonly signal: AbortSignal;
  /** In whose turn its statements run, where several namespaces wait. Default: that of the server's own work. */
  readonly namespace?: string;
  /** Undefined: what is done is not traced. */
  readonly trace?: Trace | undefined;
}

/** The store cannot be opened. The message tells the operator why and what to do. */
export class StoreOpenError extends Error {
  override readonly name = 'StoreOpenError';
}

/** DATABASE_UNAVAILABLE: the database has answered no connection for seconds. Waiting calls can fail at once. */
export class DatabaseSilent extends AnabranchError {}

/** DATABASE_UNAVAILABLE for this work only, because of locks of other transactions. Nothing was written. */
export class Contended extends AnabranchError {}

/** Whether work failed for a reason that any other work meets too: trying its parts alone would not help. */
export function isOutage(error: unknown): boolean {
  if (!(error instanceof AnabranchError) || error instanceof Contended) return false;
  return ['DATABASE_UNAVAILABLE', 'DATABASE_READ_ONLY', 'STORAGE_FULL', 'STORAGE_LOST'].includes(error.reason);
}
