import type { ColumnType, Generated } from 'kysely';

/** The tables as both engines hold them; the schema itself is in `migrations/`, its result in the golden files of the tests. */

/** Whole numbers are bigint in both directions; small ones may be bound as numbers. */
type Int = ColumnType<bigint, bigint | number, bigint | number>;
type NullableInt = ColumnType<bigint | null, bigint | number | null, bigint | number | null>;
/** Bound as 0 or 1; read with `isSet`, since engines differ. */
type Flag = ColumnType<boolean | bigint | 0 | 1, 0 | 1, 0 | 1>;
/** A flag that new rows do not have. */
type UnsetFlag = ColumnType<boolean | bigint | 0 | 1, 0 | 1 | undefined, 0 | 1>;
type NullableFlag = ColumnType<boolean | bigint | 0 | 1 | null, 0 | 1 | null, 0 | 1 | null>;
/** SQLite keeps NaN as the text `NaN`, since it would store NULL (W11); written with `bindReal`, read with `readReal`. */
export type Real = ColumnType<number | string, number | string, number | string>;
type NullableReal = ColumnType<number | string | null, number | string | null, number | string | null>;
/** ISO text in UTC with six digits of a second on both engines. */
type Time = ColumnType<string, unknown, unknown>;
type NullableTime = ColumnType<string | null, unknown, unknown>;
type Bytes = ColumnType<Uint8Array, Uint8Array, Uint8Array>;

export interface Tables {
  trajectories: TrajectoriesTable;
  steps: StepsTable;
  step_states: StepStatesTable;
  content_states: ContentStatesTable;
  states: StatesTable;
  state_uploads: StateUploadsTable;
  state_chunks: StateChunksTable;
  tags: TagsTable;
  status_changes: StatusChangesTable;
  requests: RequestsTable;
  experiments: ExperimentsTable;
  runs: RunsTable;
  stages: StagesTable;
  metric_series: MetricSeriesTable;
  metric_points: MetricPointsTable;
  tasks: TasksTable;
  validators: ValidatorsTable;
  groups: GroupsTable;
  rollouts: RolloutsTable;
  attempts: AttemptsTable;
  validations: ValidationsTable;
  validation_overrides: ValidationOverridesTable;
  environments: EnvironmentsTable;
  rollout_environments: RolloutEnvironmentsTable;
  rollout_cancellations: RolloutCancellationsTable;
  /** SQLite's alone: the newest mark of a change. */
  change_marks: ChangeMarksTable;
}

/** Tables that both engines have. */
export type StoredTable = Exclude<keyof Tables, 'change_marks'>;

export type ColumnOf<T extends StoredTable> = Extract<keyof Tables[T], string>;

export interface TrajectoriesTable {
  tree: Int;
  key: Int;
  namespace: string;
  id: string;
  uid: string;
  parent: NullableInt;
  branch_point: NullableInt;
  name: string;
  task_id: string;
  labels: string;
  metadata_json: string;
  metrics: string;
  status: string;
  status_message: string;
  writer_id: string;
  writer_epoch: Int;
  next_step_number: Int;
  reward_sum: Real;
  byte_sum: Int;
  hidden: Flag;
  create_time: Time;
  update_time: Time;
  seal_time: NullableTime;
  /** Row keys of the run and the experiment that it belongs to. */
  run: NullableInt;
  experiment: NullableInt;
  /** Branches between it and the root of its tree: 0 for a root. */
  depth: Int;
  /** The trajectory is deleted and its rows are being removed. Such a row is hidden too. */
  purging: UnsetFlag;
  /** The trajectory is hidden, stays for its branches, and its steps after the last branch point are being removed. */
  trimming: UnsetFlag;
  /**
   * Sum of the rewards of own steps, in order. Null: no own step has a reward that counts, or the trajectory was trimmed, which shows no rewards.
   */
  branch_reward_sum: NullableReal;
}

export interface StepsTable {
  tree: Int;
  trajectory: Int;
  step_number: Int;
  namespace: string;
  reward: NullableReal;
  terminated: Flag;
  truncated: Flag;
  writer_epoch: Int;
  reward_sum: Real;
  byte_sum: Int;
  commit_time: Time;
  start_time: string | null;
  end_time: string | null;
  content_digest: Bytes;
  metrics: string;
  actions: string;
  observations: string;
  info_json: string;
  metadata_json: string;
}

export interface StepStatesTable {
  tree: Int;
  trajectory: Int;
  step_number: Int;
  name: string;
  namespace: string;
  digest: Bytes;
  media_type: string;
  size: Int;
}

export interface ContentStatesTable {
  tree: Int;
  trajectory: Int;
  step_number: Int;
  digest: Bytes;
  namespace: string;
}

/**
 * `referenced`: a step may refer to the state. Set by the append that refers to it, taken back when such a step is deleted (then the collector
 * looks whether another step still refers to it). `version` rises with every change of the row.
 *
 * An append neither locks nor changes a state that it finds referenced. The collector keeps such a state in three steps:
 * 1. It chooses states that are not referenced, and notes their versions.
 * 2. It waits until all appends have ended that looked up states before (`Engine.outwaitReferrers`), then reads all references. So it sees
 *    the references of every append that found a chosen state while that was still referenced.
 * 3. It deletes the others if their versions are the same. An append that found a chosen state afterwards found it not referenced, and
 *    changed it.
 */
export interface StatesTable {
  namespace: string;
  digest: Bytes;
  size: Int;
  encoding: string;
  /** The whole state, or null where it is in chunks. */
  data: ColumnType<Uint8Array | null, Uint8Array | null, Uint8Array | null>;
  /** The upload whose chunks it is made of, or null. */
  upload: string | null;
  referenced: Flag;
  version: Int;
  renew_time: Time;
}

export interface StateUploadsTable {
  upload: string;
  namespace: string;
  renew_time: Time;
}

export interface StateChunksTable {
  upload: string;
  ordinal: Int;
  namespace: string;
  digest: Bytes;
  size: Int;
  encoding: string;
  data: Bytes;
}

export interface TagsTable {
  tree: Int;
  trajectory: Int;
  name: string;
  namespace: string;
  step_number: Int;
  update_time: Time;
}

export interface StatusChangesTable {
  tree: Int;
  entity_kind: string;
  entity: Int;
  ordinal: Int;
  namespace: string;
  old_status: string | null;
  new_status: string;
  phase: string;
  message: string;
  metadata_json: string;
  actor: string;
  progress_percent: NullableReal;
  change_time: Time;
}

export interface RequestsTable {
  namespace: string;
  rpc: string;
  request_id: string;
  request_digest: string;
  tree: Int;
  resource: Int;
  resource_id: string;
  create_time: Time;
  /** Of ClaimRollouts: JSON text, pairs of a rollout's row key and the attempt that was claimed. */
  claims: ColumnType<string | null, string | null | undefined, string | null>;
}

export type TableName = keyof Tables;

export interface ExperimentsTable {
  key: Int;
  namespace: string;
  id: string;
  name: string;
  description: string;
  environment_name: string;
  environment_config_json: string;
  agent_type: string;
  agent_config_json: string;
  default_config_json: string;
  max_steps: NullableInt;
  seed: NullableInt;
  /** A list, as JSON text. */
  tags: string;
  metadata_json: string;
  /** The number of its newest run. */
  last_run_number: Int;
  hidden: Flag;
  create_time: Time;
  update_time: Time;
}

export interface RunsTable {
  key: Int;
  namespace: string;
  id: string;
  experiment: Int;
  /** Row key of its tree's root. */
  tree: Int;
  number: Int;
  name: string;
  description: string;
  config_json: string;
  config_overrides_json: string;
  /** JSON text: a list of strings. */
  removed_config_paths: string;
  labels: string;
  metadata_json: string;
  /** JSON text; empty: none. */
  plan: string;
  parent: NullableInt;
  branch_point: NullableInt;
  main_tree: NullableInt;
  main_trajectory: NullableInt;
  status: string;
  status_message: string;
  phase: string;
  metrics: string;
  result_json: string;
  /** Its pauses, as JSON text; empty: none. Leases and timeouts of attempts do not run while it is paused. */
  pauses: Generated<string>;
  heartbeat_timeout_ms: Int;
  fail_when_stale: Flag;
  heartbeat_time: NullableTime;
  /** When the last heartbeat's timeout ends; null before the first. */
  stale_time: NullableTime;
  start_time: NullableTime;
  end_time: NullableTime;
  create_time: Time;
  update_time: Time;
  /** How many StatusChanges it has: the ordinal of the next. */
  status_changes: Int;
  revision: Int;
  /** When its row changed last, in the order of `Engine.changeMark`. */
  mark: Int;
  hidden: Flag;
}

export interface StagesTable {
  key: Int;
  namespace: string;
  id: string;
  run: Int;
  kind: string;
  number: Int;
  batch: NullableInt;
  status: string;
  status_message: string;
  phase: string;
  model_uri: string;
  model_checkpoint_uri: string;
  metrics: string;
  metadata_json: string;
  completed_substeps: Int;
  total_substeps: NullableInt;
  /** JSON text, an object of pairs of times. */
  timings: string;
  /** Substeps whose duration is known, the seconds they took together, and since when the next ones are timed. */
  timed_substeps: Int;
  substep_seconds: Real;
  substeps_time: NullableTime;
  /** What was expected when it ended FAILED or CANCELLED, and the share that was done (null: nothing could be counted). Otherwise null. */
  end_expected_turns: Real | null;
  end_expected_substeps: Real | null;
  end_share: Real | null;
  /** Since when CreateRollouts is refused; null: the queue is open. Set in every terminal stage. */
  queue_close_time: NullableTime;
  start_time: NullableTime;
  end_time: NullableTime;
  create_time: Time;
  update_time: Time;
  /** As in `RunsTable`. */
  status_changes: Int;
  revision: Int;
  mark: Int;
}

export interface MetricSeriesTable {
  key: Int;
  namespace: string;
  run: Int;
  /** 0: the run's own. */
  stage: Int;
  name: string;
}

export interface MetricPointsTable {
  series: Int;
  metric_step: Int;
  namespace: string;
  value: Real;
}

export interface ChangeMarksTable {
  mark: Int;
}

export interface TasksTable {
  key: Int;
  namespace: string;
  id: string;
  name: string;
  description: string;
  difficulty: string;
  category: string;
  app_name: string;
  source_type: string;
  max_turns: NullableInt;
  /** A list, as JSON text; prerequisites too. */
  tags: string;
  prerequisites: string;
  input_json: string;
  metadata_json: string;
  create_time: Time;
  update_time: Time;
}

export interface ValidatorsTable {
  key: Int;
  namespace: string;
  id: string;
  task: Int;
  type: string;
  query: string;
  method: string;
  expected_result: string;
  config_json: string;
  advisory: Flag;
  create_time: Time;
  update_time: Time;
}

export interface GroupsTable {
  key: Int;
  namespace: string;
  id: string;
  run: Int;
  stage: Int;
  number: Int;
  batch: NullableInt;
  on_success: string;
  labels: string;
  metrics: string;
  metadata_json: string;
  /** Number of rollouts, of terminal ones, of terminal ones that had an attempt, and the turns that terminal ones took. */
  rollouts: Int;
  terminal_rollouts: Int;
  tried_rollouts: Int;
  terminal_turns: Int;
  /** Turns that ended with their rollouts, also those of attempts that were given up, and the seconds they took together. */
  timed_turns: Int;
  turn_seconds: Real;
  create_time: Time;
  update_time: Time;
  revision: Int;
  mark: Int;
}

export interface RolloutsTable {
  key: Int;
  namespace: string;
  id: string;
  run: Int;
  stage: Int;
  group_key: Int;
  group_number: Int;
  number: Int;
  task: NullableInt;
  labels: string;
  input_json: string;
  priority: Int;
  max_turns: NullableInt;
  max_attempts: Int;
  /** Attempts that do not count towards `max_attempts`. */
  refunded_attempts: Generated<bigint>;
  /** Null: no bound. */
  attempt_timeout_ms: NullableInt;
  retry_delay_ms: Generated<bigint>;
  /** The start point: id of the trajectory, and the last shared step. */
  start_trajectory: string | null;
  start_step: NullableInt;
  model_uri: string;
  status: string;
  status_message: string;
  phase: string;
  attempt: Int;
  /** Of the current attempt's trajectory, with `trajectory`; null before the first claim. */
  tree: NullableInt;
  trajectory: NullableInt;
  worker_id: string;
  /** How long its lease lasts from its last claim, heartbeat or append, as given last; 0: the current attempt does not hold it, or not any more. */
  lease_ms: Int;
  /** End of the lease, counted from the last claim or heartbeat; at most `attempt_end_time`. The sweep looks at the rollout then. */
  lease_end_time: NullableTime;
  /** When `attempt_timeout_ms` ends; null without one, and while nobody holds the rollout. */
  attempt_end_time: NullableTime;
  /** Microseconds for which the run had been paused in all when the two times above were written: later pauses move them on. */
  paused_us: Generated<bigint>;
  /** JSON text, without its summary, which stands apart so that it is read only where it is shown; empty: none. */
  result: string;
  summary_json: string;
  result_success: NullableFlag;
  validation_passed: NullableFlag;
  /** The override that stands. */
  override: NullableFlag;
  /** The verdict (M3); null: unjudged. */
  success: NullableFlag;
  /** Once terminal: the result's, else the sum over own steps; null: none. */
  reward: NullableReal;
  /** Once terminal: own steps that are not the root. */
  turns: Int;
  metrics: string;
  timings: string;
  metadata_json: string;
  /** Of fields that were changed since the creation, what they were created with: JSON text, an object; empty: none. */
  first_given: Generated<string>;
  /** When it last became claimable, or will, if it is PENDING and delayed. */
  claimable_time: NullableTime;
  start_time: NullableTime;
  end_time: NullableTime;
  create_time: Time;
  update_time: Time;
  /** As in `RunsTable`. */
  status_changes: Int;
  revision: Int;
  mark: Int;
}

export interface AttemptsTable {
  rollout: Int;
  number: Int;
  namespace: string;
  tree: Int;
  trajectory: Int;
  status: string;
  message: string;
  worker_id: string;
  claim_time: Time;
  end_time: NullableTime;
  /** What the worker reported at its end, as in `RolloutsTable`. */
  result: Generated<string>;
  summary_json: Generated<string>;
  result_success: NullableFlag;
  /** Null: no validation that decides was recorded. */
  validation_passed: NullableFlag;
  /** The override that stands. */
  override: NullableFlag;
  /** The verdict (M3); null: unjudged. */
  success: NullableFlag;
  /** Set at its end: the result's reward, else the sum over its own steps; null: neither. */
  reward: NullableReal;
  /** Set at its end: own steps that are not the root. */
  turns: Generated<bigint>;
  metrics: Generated<string>;
  timings: Generated<string>;
  /** When its rollout last became claimable before the claim. */
  claimable_time: NullableTime;
  /** When it became RUNNING. */
  start_time: NullableTime;
  /** Digest of the request that ended it (L5); empty if no worker did, or if it ended before digests were stored. */
  end_digest: Generated<string>;
}

export interface ValidationsTable {
  rollout: Int;
  /** The attempt that was judged. 0: recorded before the first attempt by an older version; it no longer counts. */
  attempt: Generated<bigint>;
  /** Unique in the attempt: the type of the validator, or a free name. */
  name: string;
  /** The validator of the rollout's task that has the name as its type. Null: the name is free. */
  validator: NullableInt;
  namespace: string;
  /** As the validator was when it was recorded: what has been judged is not judged anew. */
  advisory: Flag;
  success: Flag;
  query: string;
  expected_result: string;
  actual_result: string;
  execution_ms: NullableInt;
  error_message: string;
  details_json: string;
  record_time: Time;
}

export interface ValidationOverridesTable {
  rollout: Int;
  ordinal: Int;
  /** The attempt that was judged; 0 as in `ValidationsTable`. */
  attempt: Generated<bigint>;
  namespace: string;
  success: NullableFlag;
  reason: string;
  actor: string;
  override_time: Time;
}

export interface EnvironmentsTable {
  key: Int;
  namespace: string;
  id: string;
  run: Int;
  type: string;
  external_id: string;
  status: string;
  status_message: string;
  phase: string;
  labels: string;
  config_json: string;
  start_time: NullableTime;
  end_time: NullableTime;
  create_time: Time;
  update_time: Time;
  /** As in `RunsTable`. */
  status_changes: Int;
}

export interface RolloutEnvironmentsTable {
  rollout: Int;
  attempt: Int;
  environment: Int;
  namespace: string;
}

/** Runs and stages whose rollouts are to be cancelled, or were. A reopening removes the row. */
export interface RolloutCancellationsTable {
  run: Int;
  /** 0: all stages of the run. */
  stage: Int;
  namespace: string;
  /** Of the caller who asked for it first, for the histories of the rollouts. */
  actor: string;
  message: string;
  metadata_json: string;
  /** Rollouts that were cancelled so far. */
  cancelled: Int;
  /** Rollouts may be left that are to be cancelled. */
  open: Flag;
}
