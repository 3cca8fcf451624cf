import { STATUSES } from '../../../../domain/lifecycle.ts';
import { LIMITS } from '../../../../domain/limits.ts';
import { STAGE_KINDS } from '../../../../domain/run.ts';
import {
  AMOUNT,
  ANY_INTEGER,
  ANY_REAL,
  COUNT,
  config,
  DAY_MS,
  integers,
  json,
  LABELS,
  list,
  METRICS,
  MOMENT,
  NATURAL,
  oneOf,
  PAUSES,
  PLAN,
  reals,
  SUBSTEPS,
  TIMINGS,
  upTo,
} from './forms.ts';
import { flag, int, nullable, of, real, table, text, time, uuid, withDefault } from './table.ts';

export const EXPERIMENTS = table('experiments', {
  key: int,
  namespace: text,
  id: uuid,
  name: of(text, upTo(256, 1)),
  description: of(text, upTo(16_384)),
  environment_name: of(text, upTo(256)),
  environment_config_json: of(text, json(131_072)),
  agent_type: of(text, upTo(256)),
  agent_config_json: of(text, json(131_072)),
  default_config_json: of(text, config(LIMITS.configBytes)),
  max_steps: nullable(of(int, NATURAL)),
  seed: nullable(of(int, ANY_INTEGER)),
  /** JSON text: a list of strings. */
  tags: of(text, list(64, 256)),
  metadata_json: of(text, json(262_144)),
  /** Number of the newest run. */
  last_run_number: of(int, COUNT),
  hidden: flag,
  create_time: of(time, MOMENT),
  update_time: of(time, MOMENT),
});

export const RUNS = table('runs', {
  key: int,
  namespace: text,
  id: uuid,
  experiment: int,
  /** Row key of the root of the run's tree. */
  tree: int,
  number: of(int, COUNT),
  name: of(text, upTo(256)),
  description: of(text, upTo(16_384)),
  config_json: of(text, config(LIMITS.effectiveConfigBytes)),
  config_overrides_json: of(text, config(LIMITS.configBytes)),
  /** JSON text: a list of strings. */
  removed_config_paths: of(text, list(LIMITS.removedConfigPaths, LIMITS.configPathBytes)),
  labels: of(text, LABELS),
  metadata_json: of(text, json(262_144)),
  /** JSON text; empty for no plan. */
  plan: of(text, PLAN),
  parent: nullable(int),
  branch_point: nullable(of(int, NATURAL)),
  main_tree: nullable(int),
  main_trajectory: nullable(int),
  status: of(text, oneOf(STATUSES)),
  status_message: of(text, upTo(4096)),
  phase: of(text, upTo(256)),
  metrics: of(text, METRICS),
  result_json: of(text, json(262_144)),
  /** Pauses as JSON text; empty for none. Leases and attempt timeouts do not run during a pause. */
  pauses: withDefault(of(text, PAUSES)),
  heartbeat_timeout_ms: of(int, integers(1, 30 * DAY_MS)),
  fail_when_stale: flag,
  heartbeat_time: nullable(of(time, MOMENT)),
  /** End of the timeout of the last heartbeat; null before the first. */
  stale_time: nullable(of(time, MOMENT)),
  start_time: nullable(of(time, MOMENT)),
  end_time: nullable(of(time, MOMENT)),
  create_time: of(time, MOMENT),
  update_time: of(time, MOMENT),
  /** Number of StatusChanges, which is the ordinal of the next one. */
  status_changes: of(int, COUNT),
  revision: of(int, COUNT),
  /** Mark of the last change of the row (`Changes.mark`). */
  mark: int,
  hidden: flag,
});

export const STAGES = table('stages', {
  key: int,
  namespace: text,
  id: uuid,
  run: int,
  kind: of(text, oneOf(STAGE_KINDS)),
  number: of(int, NATURAL),
  batch: nullable(of(int, ANY_INTEGER)),
  status: of(text, oneOf(STATUSES)),
  status_message: of(text, upTo(4096)),
  phase: of(text, upTo(256)),
  model_uri: of(text, upTo(2048)),
  model_checkpoint_uri: of(text, upTo(2048)),
  metrics: of(text, METRICS),
  metadata_json: of(text, json(262_144)),
  completed_substeps: of(int, SUBSTEPS),
  total_substeps: nullable(of(int, SUBSTEPS)),
  /** JSON text: an object of pairs of times. */
  timings: of(text, TIMINGS),
  /** Number of substeps with a known duration, the sum of their seconds, and the start of the next measurement. */
  timed_substeps: of(int, COUNT),
  substep_seconds: of(real, AMOUNT),
  substeps_time: nullable(of(time, MOMENT)),
  /**
   * Set when the stage ends FAILED or CANCELLED: expected work, and the share that is done (null if nothing can be
   * counted).
   */
  end_expected_turns: nullable(of(real, AMOUNT)),
  end_expected_substeps: nullable(of(real, AMOUNT)),
  end_share: nullable(of(real, reals(0, 1))),
  /** When the queue was closed, so that CreateRollouts fails; null while it is open. Set in every terminal stage. */
  queue_close_time: nullable(of(time, MOMENT)),
  start_time: nullable(of(time, MOMENT)),
  end_time: nullable(of(time, MOMENT)),
  create_time: of(time, MOMENT),
  update_time: of(time, MOMENT),
  /** As in `RUNS`. */
  status_changes: of(int, COUNT),
  revision: of(int, COUNT),
  mark: int,
});

export const ENVIRONMENTS = table('environments', {
  key: int,
  namespace: text,
  id: uuid,
  run: int,
  type: of(text, upTo(64)),
  external_id: of(text, upTo(256)),
  status: of(text, oneOf(STATUSES)),
  status_message: of(text, upTo(4096)),
  phase: of(text, upTo(256)),
  labels: of(text, LABELS),
  config_json: of(text, json(131_072)),
  start_time: nullable(of(time, MOMENT)),
  end_time: nullable(of(time, MOMENT)),
  create_time: of(time, MOMENT),
  update_time: of(time, MOMENT),
  /** As in `RUNS`. */
  status_changes: of(int, COUNT),
});

export const METRIC_SERIES = table('metric_series', {
  key: int,
  namespace: text,
  run: int,
  /** 0 for a series of the run itself. */
  stage: int,
  name: of(text, upTo(LIMITS.seriesNameBytes, 1)),
});

export const METRIC_POINTS = table('metric_points', {
  series: int,
  metric_step: of(int, ANY_INTEGER),
  namespace: text,
  value: of(real, ANY_REAL),
});
