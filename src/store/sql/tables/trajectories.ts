import { flag, int, nullable, real, text, time, uuid, withDefault } from './column.ts';
import { table } from './table.ts';

export const TRAJECTORIES = table('trajectories', {
  tree: int,
  key: int,
  namespace: text,
  id: uuid,
  uid: uuid,
  parent: nullable(int),
  branch_point: nullable(int),
  name: text,
  task_id: text,
  labels: text,
  metadata_json: text,
  metrics: text,
  status: text,
  status_message: text,
  writer_id: text,
  writer_epoch: int,
  next_step_number: int,
  reward_sum: real,
  byte_sum: int,
  hidden: flag,
  create_time: time,
  update_time: time,
  seal_time: nullable(time),
  /** Row keys of the run and the experiment of the trajectory. */
  run: nullable(int),
  experiment: nullable(int),
  /** Number of branches between the trajectory and the root of its tree; 0 for a root. */
  depth: int,
  /** The trajectory is deleted and its rows are being removed. Such a row is hidden too. */
  purging: withDefault(flag),
  /**
   * The trajectory is deleted but kept for its branches. Its steps after the last branch point are being removed. Such
   * a row is hidden too.
   */
  trimming: withDefault(flag),
  /**
   * Sum of the rewards of own steps, in order. Null if no own step has a reward that counts, or if the trajectory was
   * trimmed.
   */
  branch_reward_sum: nullable(real),
  /** Number of own steps after step 0 that have a start and an end time, and the sum of these times. */
  timed_turns: withDefault(int),
  turn_seconds: withDefault(real),
  /**
   * Smallest and largest reward of own steps, NaN aside; null if there is none. After steps were removed, the rewards
   * that are left may lie within narrower bounds.
   */
  min_reward: nullable(real),
  max_reward: nullable(real),
  /** JSON array of the keys of metrics that have rows in `step_scores`. */
  scored_metrics: withDefault(text),
  /** No row of steps that ends at or before this number can be merged with the next one. */
  merged_to: withDefault(int),
  /**
   * All rows of steps that begin before this number are counted, so `segment_state_names` has them. Unlike `merged_to`,
   * it never moves back.
   */
  named_to: withDefault(int),
  /** All its rows of steps are in `storage_counts`. A trigger resets it when steps are appended. */
  counted: withDefault(flag),
  /** Digest of the request of CreateTrajectory or BranchTrajectory; empty if none of them created it. */
  create_digest: withDefault(text),
  /** The trajectory was created when it was opened (W1), so its row leaves one of `deleted_trajectories`. */
  created_by_open: withDefault(flag),
});

/** Ids that are not created again when they are opened (W1). Kept for `DELETED_ID_DAYS`. */
export const DELETED_TRAJECTORIES = table('deleted_trajectories', {
  namespace: text,
  id: uuid,
  delete_time: time,
});

/**
 * Trajectories that imports have begun. They are hidden until all their steps are stored. A hidden ancestor stays
 * listed until the branch that needs it is imported.
 */
export const TRAJECTORY_IMPORTS = table('trajectory_imports', {
  tree: int,
  trajectory: int,
  namespace: text,
  /** Time of the last import of steps. Imports that were given up are removed by it. */
  renew_time: time,
});

export const TAGS = table('tags', {
  tree: int,
  trajectory: int,
  name: text,
  namespace: text,
  step_number: int,
  update_time: time,
});
