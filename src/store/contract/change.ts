import type { Hint } from '../../domain/change.ts';
import type { TrajectoryRef } from '../../domain/trajectory.ts';
import type { Horizon } from './run.ts';

export interface ChangeStore {
  /**
   * Calls the listener when a trajectory may have grown, been sealed or been deleted, when a run may have changed, and
   * when metric points were written, by this process or another. Calls are hints, sent after the commit, that may be
   * repeated or lost: `findChanges` finds what they miss. Undefined means any change. Returns a function that removes
   * the listener.
   */
  onChange(listener: (hint: Hint | undefined) => void): () => void;

  /** Whether hints of other processes arrive. When they arrive again, `onChange` means any change. */
  readonly hearsOthers: boolean;

  /** Finds what has changed of rows that somebody waits for, in one statement for all of them. */
  findChanges(awaited: AwaitedRows): Promise<ChangedRows>;
}

export interface AwaitedRows {
  /** Trajectories that can grow, with the end that is known of each. */
  readonly trajectories: readonly { readonly ref: TrajectoryRef; readonly end: bigint }[];
  /** Row keys. */
  readonly runs: readonly bigint[];
  /** Namespaces in which somebody waits for any PENDING rollout. */
  readonly queues: readonly string[];
  /** The horizon of the previous call. */
  readonly since: Horizon | undefined;
}

export interface ChangedRows {
  /** Row keys of awaited trajectories that have grown, or can grow no more. */
  readonly trajectories: readonly bigint[];
  /** All awaited runs that exist. */
  readonly runs: readonly AwaitedRun[];
  /** Awaited namespaces that have PENDING rollouts in open stages. */
  readonly queues: readonly string[];
  readonly horizon: Horizon;
}

export interface AwaitedRun {
  readonly key: bigint;
  /** Whether a row of the run has changed since the horizon. True without a comparable horizon. */
  readonly changed: boolean;
  /**
   * Text of values that watchers see and that set no mark: the ends of the main trajectory and of live rollouts,
   * whether the run is stale, and the name of its experiment.
   */
  readonly derived: string;
}
