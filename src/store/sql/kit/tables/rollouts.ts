import { STATUSES } from '../../../../domain/lifecycle.ts';
import {
  ACTOR,
  AMOUNT,
  ANY_INTEGER,
  ANY_REAL,
  ATTEMPT,
  COUNT,
  DAY_MS,
  integers,
  json,
  LABELS,
  list,
  METRICS,
  MOMENT,
  NATURAL,
  oneOf,
  originals,
  RESULT,
  TIMINGS,
  upTo,
} from './forms.ts';
import { flag, int, nullable, of, real, table, text, time, uuid, withDefault } from './table.ts';

export const TASKS = table('tasks', {
  key: int,
  namespace: text,
  id: of(text, upTo(256, 1)),
  name: of(text, upTo(256)),
  description: of(text, upTo(16_384)),
  difficulty: of(text, upTo(64)),
  category: of(text, upTo(64)),
  app_name: of(text, upTo(256)),
  source_type: of(text, upTo(64)),
  max_turns: nullable(of(int, NATURAL)),
  /** JSON text: lists of strings. */
  tags: of(text, list(64, 256)),
  prerequisites: of(text, list(64, 256)),
  input_json: of(text, json(131_072)),
  metadata_json: of(text, json(131_072)),
  create_time: of(time, MOMENT),
  update_time: of(time, MOMENT),
});

export const VALIDATORS = table('validators', {
  key: int,
  namespace: text,
  id: uuid,
  task: int,
  type: of(text, upTo(128, 1)),
  query: of(text, upTo(16_384)),
  method: of(text, upTo(256)),
  expected_result: of(text, upTo(16_384)),
  config_json: of(text, json(65_536)),
  advisory: flag,
  create_time: of(time, MOMENT),
  update_time: of(time, MOMENT),
});

/** Statuses of rollouts: they are not paused. */
const ROLLOUT_STATUSES = STATUSES.filter((status) => status !== 'PAUSED');

export const GROUPS = table('groups', {
  key: int,
  namespace: text,
  id: uuid,
  run: int,
  stage: int,
  number: of(int, NATURAL),
  batch: nullable(of(int, ANY_INTEGER)),
  on_success: of(text, oneOf(['CONTINUE', 'CANCEL_PENDING'])),
  labels: of(text, LABELS),
  metrics: of(text, METRICS),
  metadata_json: of(text, json(131_072)),
  /** Number of rollouts, of terminal ones, and of terminal ones that had an attempt; and the turns of terminal ones. */
  rollouts: of(int, COUNT),
  terminal_rollouts: of(int, COUNT),
  tried_rollouts: of(int, COUNT),
  terminal_turns: of(int, COUNT),
  /** Measured turns of ended attempts, including abandoned ones, and the sum of their seconds. */
  timed_turns: of(int, COUNT),
  turn_seconds: of(real, AMOUNT),
  create_time: of(time, MOMENT),
  update_time: of(time, MOMENT),
  revision: of(int, COUNT),
  mark: int,
});

/** Columns that CreateRollouts sets. A repeated request must have the same values in all of them (Q6). */
export const GIVEN_TO_ROLLOUTS = {
  input_json: of(text, json(131_072)),
  labels: of(text, LABELS),
  priority: of(int, integers(0, 1_000_000)),
  max_turns: nullable(of(int, NATURAL)),
  max_attempts: of(int, integers(0, 100)),
  /** Null for no timeout. */
  attempt_timeout_ms: nullable(of(int, integers(1, 30 * DAY_MS))),
  retry_delay_ms: withDefault(of(int, integers(0, DAY_MS / 24))),
  /** Start point: id of the trajectory, and the last shared step. */
  start_trajectory: nullable(uuid),
  start_step: nullable(of(int, NATURAL)),
  model_uri: of(text, upTo(2048)),
  metadata_json: of(text, json(131_072)),
};

export const ROLLOUTS = table('rollouts', {
  key: int,
  namespace: text,
  id: uuid,
  run: int,
  stage: int,
  group_key: int,
  group_number: of(int, NATURAL),
  number: of(int, NATURAL),
  task: nullable(int),
  ...GIVEN_TO_ROLLOUTS,
  /** Attempts that do not count towards `max_attempts`. */
  refunded_attempts: withDefault(of(int, ATTEMPT)),
  status: of(text, oneOf(ROLLOUT_STATUSES)),
  status_message: of(text, upTo(4096)),
  phase: of(text, upTo(256)),
  attempt: of(int, ATTEMPT),
  /** Trajectory of the current attempt; null before the first claim. */
  tree: nullable(int),
  trajectory: nullable(int),
  worker_id: of(text, upTo(128)),
  /** The principal that has claimed the current attempt; empty before the first claim. */
  claimer: of(text, ACTOR),
  /**
   * Current duration of the lease, which runs from the last claim, heartbeat or append. 0 if no attempt holds the
   * rollout.
   */
  lease_ms: of(int, integers(0, DAY_MS)),
  /**
   * End of the lease, counted from the last claim or heartbeat; at most `attempt_end_time`. The sweep examines the
   * rollout then.
   */
  lease_end_time: nullable(of(time, MOMENT)),
  /** End of `attempt_timeout_ms`; null without a timeout, and while no worker holds the rollout. */
  attempt_end_time: nullable(of(time, MOMENT)),
  /**
   * Total microseconds for which the run had been paused when the two times above were written. Later pauses extend
   * them.
   */
  paused_us: withDefault(of(int, COUNT)),
  /**
   * JSON text without the summary; empty for none. The summary has its own column, so that the BASIC view does not read
   * it.
   */
  result: of(text, RESULT),
  summary_json: of(text, json(131_072)),
  result_success: nullable(flag),
  validation_passed: nullable(flag),
  /** The current override. */
  override: nullable(flag),
  /** The verdict (M3); null if unjudged. */
  success: nullable(flag),
  /** Once terminal: the reward of the result, else the sum over own steps. Null if there is neither. */
  reward: nullable(of(real, ANY_REAL)),
  /** Once terminal: number of own steps that are not the root. */
  turns: of(int, COUNT),
  metrics: of(text, METRICS),
  timings: of(text, TIMINGS),
  /** JSON text: an object with the original values of given columns that changed since the creation; empty for none. */
  first_given: withDefault(of(text, originals(Object.keys(GIVEN_TO_ROLLOUTS)))),
  /** When the rollout last became claimable. For a delayed PENDING rollout, when it becomes claimable. */
  claimable_time: of(time, MOMENT),
  start_time: nullable(of(time, MOMENT)),
  end_time: nullable(of(time, MOMENT)),
  create_time: of(time, MOMENT),
  update_time: of(time, MOMENT),
  /** As in `RUNS`. */
  status_changes: of(int, COUNT),
  revision: of(int, COUNT),
  mark: int,
});

export const ROLLOUT_ENVIRONMENTS = table('rollout_environments', {
  rollout: int,
  attempt: of(int, ATTEMPT),
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
  actor: of(text, ACTOR),
  message: of(text, upTo(4096)),
  metadata_json: of(text, json(16_384)),
  /** Number of rollouts cancelled so far. */
  cancelled: of(int, COUNT),
  /** Whether rollouts may remain to be cancelled. */
  open: flag,
});
