import { TERMINAL_STATUSES } from '../../../../domain/lifecycle.ts';
import { LIMITS } from '../../../../domain/limits.ts';
import {
  ACTOR,
  COUNT,
  integers,
  json,
  LABELS,
  list,
  METRICS,
  MOMENT,
  matching,
  NATURAL,
  oneOf,
  upTo,
} from './forms.ts';
import { flag, int, nullable, of, real, table, text, time, uuid, withDefault } from './table.ts';

export const TRAJECTORIES = table('trajectories', {
  tree: int,
  key: int,
  namespace: text,
  id: uuid,
  uid: uuid,
  parent: nullable(int),
  branch_point: nullable(of(int, NATURAL)),
  name: of(text, upTo(256)),
  task_id: of(text, upTo(256)),
  labels: of(text, LABELS),
  metadata_json: of(text, json(524_288)),
  metrics: of(text, METRICS),
  status: of(text, oneOf(['RUNNING', ...TERMINAL_STATUSES])),
  status_message: of(text, upTo(4096)),
  writer_id: of(text, upTo(128)),
  writer_epoch: of(int, COUNT),
  /** Principal of the writer; empty if no writer was ever granted. */
  writer_actor: withDefault(of(text, ACTOR)),
  next_step_number: of(int, NATURAL),
  reward_sum: real,
  byte_sum: of(int, NATURAL),
  hidden: flag,
  create_time: of(time, MOMENT),
  update_time: of(time, MOMENT),
  seal_time: nullable(of(time, MOMENT)),
  /** Row keys of the run and the experiment of the trajectory. */
  run: nullable(int),
  experiment: nullable(int),
  /** Number of branches between the trajectory and the root of its tree; 0 for a root. */
  depth: of(int, integers(0, LIMITS.branchDepth)),
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
  timed_turns: withDefault(of(int, NATURAL)),
  turn_seconds: withDefault(real),
  /**
   * Smallest and largest reward of own steps, NaN aside; null if there is none. After steps were removed, the rewards
   * that are left may lie within narrower bounds.
   */
  min_reward: nullable(real),
  max_reward: nullable(real),
  /** JSON array of the keys of metrics that have rows in `step_scores`. */
  scored_metrics: withDefault(of(text, list(LIMITS.scoredMetrics, LIMITS.metricKeyBytes))),
  /** No segment that ends at or before this number can be merged with the next one. */
  merged_to: withDefault(of(int, NATURAL)),
  /** `segment_names` has all segments that begin before this number. Unlike `merged_to`, it never moves back. */
  indexed_to: withDefault(of(int, NATURAL)),
  /** Digest of the request of CreateTrajectory or BranchTrajectory; empty if none of them created it. */
  create_digest: withDefault(of(text, upTo(256))),
  /** The trajectory was created when it was opened (W1), so its row leaves one of `deleted_trajectories`. */
  created_by_open: withDefault(flag),
});

/** Ids that are not created again when they are opened (W1). Kept for `DELETED_ID_DAYS`. */
export const DELETED_TRAJECTORIES = table('deleted_trajectories', {
  namespace: text,
  id: uuid,
  delete_time: of(time, MOMENT),
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
  renew_time: of(time, MOMENT),
});

export const TAGS = table('tags', {
  tree: int,
  trajectory: int,
  name: of(text, matching(128, /^[A-Za-z][A-Za-z0-9._/-]{0,127}$/)),
  namespace: text,
  step_number: of(int, NATURAL),
  update_time: of(time, MOMENT),
});
