import { flag, int, nullable, real, text, time, uuid, withDefault } from './column.ts';
import { table } from './table.ts';

export const EXPERIMENTS = table('experiments', {
  key: int,
  namespace: text,
  id: uuid,
  name: text,
  description: text,
  environment_name: text,
  environment_config_json: text,
  agent_type: text,
  agent_config_json: text,
  default_config_json: text,
  max_steps: nullable(int),
  seed: nullable(int),
  /** JSON text: a list of strings. */
  tags: text,
  metadata_json: text,
  /** Number of the newest run. */
  last_run_number: int,
  hidden: flag,
  create_time: time,
  update_time: time,
});

export const RUNS = table('runs', {
  key: int,
  namespace: text,
  id: uuid,
  experiment: int,
  /** Row key of the root of the run's tree. */
  tree: int,
  number: int,
  name: text,
  description: text,
  config_json: text,
  config_overrides_json: text,
  /** JSON text: a list of strings. */
  removed_config_paths: text,
  labels: text,
  metadata_json: text,
  /** JSON text; empty for no plan. */
  plan: text,
  parent: nullable(int),
  branch_point: nullable(int),
  main_tree: nullable(int),
  main_trajectory: nullable(int),
  status: text,
  status_message: text,
  phase: text,
  metrics: text,
  result_json: text,
  /** Pauses as JSON text; empty for none. Leases and attempt timeouts do not run during a pause. */
  pauses: withDefault(text),
  heartbeat_timeout_ms: int,
  fail_when_stale: flag,
  heartbeat_time: nullable(time),
  /** End of the timeout of the last heartbeat; null before the first. */
  stale_time: nullable(time),
  start_time: nullable(time),
  end_time: nullable(time),
  create_time: time,
  update_time: time,
  /** Number of StatusChanges, which is the ordinal of the next one. */
  status_changes: int,
  revision: int,
  /** Mark of the last change of the row (`Engine.changeMark`). */
  mark: int,
  hidden: flag,
});

export const STAGES = table('stages', {
  key: int,
  namespace: text,
  id: uuid,
  run: int,
  kind: text,
  number: int,
  batch: nullable(int),
  status: text,
  status_message: text,
  phase: text,
  model_uri: text,
  model_checkpoint_uri: text,
  metrics: text,
  metadata_json: text,
  completed_substeps: int,
  total_substeps: nullable(int),
  /** JSON text: an object of pairs of times. */
  timings: text,
  /** Number of substeps with a known duration, the sum of their seconds, and the start of the next measurement. */
  timed_substeps: int,
  substep_seconds: real,
  substeps_time: nullable(time),
  /**
   * Set when the stage ends FAILED or CANCELLED: expected work, and the share that is done (null if nothing can be
   * counted).
   */
  end_expected_turns: nullable(real),
  end_expected_substeps: nullable(real),
  end_share: nullable(real),
  /** When the queue was closed, so that CreateRollouts fails; null while it is open. Set in every terminal stage. */
  queue_close_time: nullable(time),
  start_time: nullable(time),
  end_time: nullable(time),
  create_time: time,
  update_time: time,
  /** As in `RUNS`. */
  status_changes: int,
  revision: int,
  mark: int,
});

export const ENVIRONMENTS = table('environments', {
  key: int,
  namespace: text,
  id: uuid,
  run: int,
  type: text,
  external_id: text,
  status: text,
  status_message: text,
  phase: text,
  labels: text,
  config_json: text,
  start_time: nullable(time),
  end_time: nullable(time),
  create_time: time,
  update_time: time,
  /** As in `RUNS`. */
  status_changes: int,
});
