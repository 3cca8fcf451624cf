import type { ColumnType, Generated } from 'kysely';

/** The tables, which both engines share. The migrations define the schema, and the tests hold a snapshot of it. */

/** Integers are bigint in both directions; small ones may be bound as numbers. */
type Int = ColumnType<bigint, bigint | number, bigint | number>;
type NullableInt = ColumnType<bigint | null, bigint | number | null, bigint | number | null>;
/** Bound as 0 or 1, and read with `isSet`, because the engines return different types. */
type Flag = ColumnType<boolean | bigint | 0 | 1, 0 | 1, 0 | 1>;
/** A flag with the default 0. */
type UnsetFlag = ColumnType<boolean | bigint | 0 | 1, 0 | 1 | undefined, 0 | 1>;
type NullableFlag = ColumnType<boolean | bigint | 0 | 1 | null, 0 | 1 | null, 0 | 1 | null>;
/** Written with `bindReal` and read with `readReal`. NaN is the text `NaN`, because SQLite would store NULL (W11). */
export type Real = ColumnType<number | string, number | string, number | string>;
type NullableReal = ColumnType<number | string | null, number | string | null, number | string | null>;
/** ISO text in UTC with six fractional digits on both engines. */
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
  /** SQLite only: the newest change mark. */
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
  /** Row keys of the run and the experiment of the trajectory. */
  run: NullableInt;
  experiment: NullableInt;
  /** Number of branches between the trajectory and the root of its tree; 0 for a root. */
  depth: Int;
  /** The trajectory is deleted and its rows are being removed. Such a row is hidden too. */
  purging: UnsetFlag;
  /**
   * The trajectory is deleted but kept for its branches. Its steps after the last branch point are being removed. Such
   * a row is hidden too.
   */
  trimming: UnsetFlag;
  /**
   * Sum of the rewards of own steps, in order. Null if no own step has a reward that counts, or if the trajectory was
   * trimmed.
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
 * Invariants of a row:
 * - `referenced`: a step may refer to the state. An append that refers to the state sets it. Deleting such a step
 *   resets it, and the collector then looks for other references.
 * - `version` rises with every change of the row.
 * An append neither locks nor changes a state that is referenced already. The collector makes this safe in three steps:
 * 1. It selects states that are not referenced, and their versions.
 * 2. It waits until all appends have ended that looked up states before (`Engine.outwaitReferrers`), and then reads all
 *    references. This includes the references of appends that found a selected state while it was referenced.
 * 3. It deletes selected states without references whose versions are unchanged. An append that found such a state
 *    later found it unreferenced, and changed its version.
 */
export interface StatesTable {
  namespace: string;
  digest: Bytes;
  size: Int;
  encoding: string;
  /** The whole state; null if it is stored in chunks. */
  data: ColumnType<Uint8Array | null, Uint8Array | null, Uint8Array | null>;
  /** The upload whose chunks hold the state, or null. */
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
  /** For ClaimRollouts: JSON text with pairs of a rollout's row key and the claimed attempt. */
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
  /** JSON text: a list of strings. */
  tags: string;
  metadata_json: string;
  /** Number of the newest run. */
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
  /** Row key of the root of the run's tree. */
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
  /** JSON text; empty for no plan. */
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
  /** Pauses as JSON text; empty for none. Leases and attempt timeouts do not run during a pause. */
  pauses: Generated<string>;
  heartbeat_timeout_ms: Int;
  fail_when_stale: Flag;
  heartbeat_time: NullableTime;
  /** End of the timeout of the last heartbeat; null before the first. */
  stale_time: NullableTime;
  start_time: NullableTime;
  end_time: NullableTime;
  create_time: Time;
  update_time: Time;
  /** Number of StatusChanges, which is the ordinal of the next one. */
  status_changes: Int;
  revision: Int;
  /** Mark of the last change of the row (`Engine.changeMark`). */
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
  /** JSON text: an object of pairs of times. */
  timings: string;
  /** Number of substeps with a known duration, the sum of their seconds, and the start of the next measurement. */
  timed_substeps: Int;
  substep_seconds: Real;
  substeps_time: NullableTime;
  /**
   * Set when the stage ends FAILED or CANCELLED: expected work, and the share that is done (null if nothing can be
   * counted).
   */
  end_expected_turns: Real | null;
  end_expected_substeps: Real | null;
  end_share: Real | null;
  /** When the queue was closed, so that CreateRollouts fails; null while it is open. Set in every terminal stage. */
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
  /** 0 for a series of the run itself. */
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
  /** JSON text: lists of strings. */
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
  /** Number of rollouts, of terminal ones, and of terminal ones that had an attempt; and the turns of terminal ones. */
  rollouts: Int;
  terminal_rollouts: Int;
  tried_rollouts: Int;
  terminal_turns: Int;
  /** Measured turns of ended attempts, including abandoned ones, and the sum of their seconds. */
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
  /** Null for no timeout. */
  attempt_timeout_ms: NullableInt;
  retry_delay_ms: Generated<bigint>;
  /** Start point: id of the trajectory, and the last shared step. */
  start_trajectory: string | null;
  start_step: NullableInt;
  model_uri: string;
  status: string;
  status_message: string;
  phase: string;
  attempt: Int;
  /** Trajectory of the current attempt; null before the first claim. */
  tree: NullableInt;
  trajectory: NullableInt;
  worker_id: string;
  /**
   * Current duration of the lease, which runs from the last claim, heartbeat or append. 0 if no attempt holds the
   * rollout.
   */
  lease_ms: Int;
  /**
   * End of the lease, counted from the last claim or heartbeat; at most `attempt_end_time`. The sweep examines the
   * rollout then.
   */
  lease_end_time: NullableTime;
  /** End of `attempt_timeout_ms`; null without a timeout, and while no worker holds the rollout. */
  attempt_end_time: NullableTime;
  /**
   * Total microseconds for which the run had been paused when the two times above were written. Later pauses extend
   * them.
   */
  paused_us: Generated<bigint>;
  /**
   * JSON text without the summary; empty for none. The summary has its own column, so that the BASIC view does not read
   * it.
   */
  result: string;
  summary_json: string;
  result_success: NullableFlag;
  validation_passed: NullableFlag;
  /** The current override. */
  override: NullableFlag;
  /** The verdict (M3); null if unjudged. */
  success: NullableFlag;
  /** Once terminal: the reward of the result, else the sum over own steps. Null if there is neither. */
  reward: NullableReal;
  /** Once terminal: number of own steps that are not the root. */
  turns: Int;
  metrics: string;
  timings: string;
  metadata_json: string;
  /** JSON text: an object with the original values of fields that changed since the creation; empty for none. */
  first_given: Generated<string>;
  /** When the rollout last became claimable. For a delayed PENDING rollout, when it becomes claimable. */
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
  /** Result that the worker reported at the end, as in `RolloutsTable`. */
  result: Generated<string>;
  summary_json: Generated<string>;
  result_success: NullableFlag;
  /** Null if no deciding validation was recorded. */
  validation_passed: NullableFlag;
  /** The current override. */
  override: NullableFlag;
  /** The verdict (M3); null if unjudged. */
  success: NullableFlag;
  /** Set at the end: the reward of the result, else the sum over own steps. Null if there is neither. */
  reward: NullableReal;
  /** Set at the end: number of own steps that are not the root. */
  turns: Generated<bigint>;
  metrics: Generated<string>;
  timings: Generated<string>;
  /** When the rollout last became claimable before the claim. */
  claimable_time: NullableTime;
  /** When the attempt became RUNNING. */
  start_time: NullableTime;
  /**
   * Digest of the request that ended the attempt (L5). Empty if no worker ended it, or if it ended before digests were
   * stored.
   */
  end_digest: Generated<string>;
}

export interface ValidationsTable {
  rollout: Int;
  /**
   * The validated attempt. 0 if an older version recorded the validation before the first attempt; it does not count.
   */
  attempt: Generated<bigint>;
  /** Unique in the attempt: the type of a validator of the task, or a free name. */
  name: string;
  /** The validator of the rollout's task whose type is the name. Null for a free name. */
  validator: NullableInt;
  namespace: string;
  /**
   * Copied from the validator when the validation was recorded. Later changes of the validator do not change recorded
   * validations.
   */
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
  /** The attempt whose verdict is overridden; 0 as in `ValidationsTable`. */
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

/** Requests to cancel the rollouts of runs and stages, including completed ones. A reopening deletes the row. */
export interface RolloutCancellationsTable {
  run: Int;
  /** 0 for all stages of the run. */
  stage: Int;
  namespace: string;
  /** From the first request, for the status changes of the rollouts. */
  actor: string;
  message: string;
  metadata_json: string;
  /** Number of rollouts cancelled so far. */
  cancelled: Int;
  /** Whether rollouts may remain to be cancelled. */
  open: Flag;
}
