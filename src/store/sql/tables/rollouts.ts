import { flag, int, nullable, real, text, time, uuid, withDefault } from './column.ts';
import { table } from './table.ts';

export const GROUPS = table('groups', {
  key: int,
  namespace: text,
  id: uuid,
  run: int,
  stage: int,
  number: int,
  batch: nullable(int),
  on_success: text,
  labels: text,
  metrics: text,
  metadata_json: text,
  /** Number of rollouts, of terminal ones, and of terminal ones that had an attempt; and the turns of terminal ones. */
  rollouts: int,
  terminal_rollouts: int,
  tried_rollouts: int,
  terminal_turns: int,
  /** Measured turns of ended attempts, including abandoned ones, and the sum of their seconds. */
  timed_turns: int,
  turn_seconds: real,
  create_time: time,
  update_time: time,
  revision: int,
  mark: int,
});

/** Columns that CreateRollouts sets. A repeated request must have the same values in all of them (Q6). */
export const GIVEN_TO_ROLLOUTS = {
  input_json: text,
  labels: text,
  priority: int,
  max_turns: nullable(int),
  max_attempts: int,
  /** Null for no timeout. */
  attempt_timeout_ms: nullable(int),
  retry_delay_ms: withDefault(int),
  /** Start point: id of the trajectory, and the last shared step. */
  start_trajectory: nullable(uuid),
  start_step: nullable(int),
  model_uri: text,
  metadata_json: text,
};

export const ROLLOUTS = table('rollouts', {
  key: int,
  namespace: text,
  id: uuid,
  run: int,
  stage: int,
  group_key: int,
  group_number: int,
  number: int,
  task: nullable(int),
  ...GIVEN_TO_ROLLOUTS,
  /** Attempts that do not count towards `max_attempts`. */
  refunded_attempts: withDefault(int),
  status: text,
  status_message: text,
  phase: text,
  attempt: int,
  /** Trajectory of the current attempt; null before the first claim. */
  tree: nullable(int),
  trajectory: nullable(int),
  worker_id: text,
  /**
   * Current duration of the lease, which runs from the last claim, heartbeat or append. 0 if no attempt holds the
   * rollout.
   */
  lease_ms: int,
  /**
   * End of the lease, counted from the last claim or heartbeat; at most `attempt_end_time`. The sweep examines the
   * rollout then.
   */
  lease_end_time: nullable(time),
  /** End of `attempt_timeout_ms`; null without a timeout, and while no worker holds the rollout. */
  attempt_end_time: nullable(time),
  /**
   * Total microseconds for which the run had been paused when the two times above were written. Later pauses extend
   * them.
   */
  paused_us: withDefault(int),
  /**
   * JSON text without the summary; empty for none. The summary has its own column, so that the BASIC view does not read
   * it.
   */
  result: text,
  summary_json: text,
  result_success: nullable(flag),
  validation_passed: nullable(flag),
  /** The current override. */
  override: nullable(flag),
  /** The verdict (M3); null if unjudged. */
  success: nullable(flag),
  /** Once terminal: the reward of the result, else the sum over own steps. Null if there is neither. */
  reward: nullable(real),
  /** Once terminal: number of own steps that are not the root. */
  turns: int,
  metrics: text,
  timings: text,
  /** JSON text: an object with the original values of given columns that changed since the creation; empty for none. */
  first_given: withDefault(text),
  /** When the rollout last became claimable. For a delayed PENDING rollout, when it becomes claimable. */
  claimable_time: time,
  start_time: nullable(time),
  end_time: nullable(time),
  create_time: time,
  update_time: time,
  /** As in `RUNS`. */
  status_changes: int,
  revision: int,
  mark: int,
});

export const ROLLOUT_ENVIRONMENTS = table('rollout_environments', {
  rollout: int,
  attempt: int,
  environment: int,
  namespace: text,
});

/** Requests to cancel the rollouts of runs and stages, including completed ones. A reopening deletes the row. */
export const ROLLOUT_CANCELLATIONS = table('rollout_cancellations', {
  run: int,
  /** 0 for all stages of the run. */
  stage: int,
  namespace: text,
  /** From the first request, for the status changes of the rollouts. */
  actor: text,
  message: text,
  metadata_json: text,
  /** Number of rollouts cancelled so far. */
  cancelled: int,
  /** Whether rollouts may remain to be cancelled. */
  open: flag,
});
