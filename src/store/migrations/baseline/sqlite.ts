/** The schema on SQLite. Real numbers have no declared type, because `real` would drop the sign of negative zero. */
export const SQLITE_TABLES = `
-- Trajectories. tree is the row key of the root. Every hot key begins with it, so that the rows of a tree are stored
-- together and can be distributed by it. Row keys rise and are never reused. reward_sum and byte_sum are running sums
-- along the lineage, which the appending transaction updates, so that a branch or a total reads one row.
create table trajectories (
  tree integer not null,
  key integer primary key autoincrement,
  namespace text not null,
  id text not null,
  uid text not null,
  parent integer,
  branch_point integer,
  name text not null,
  task_id text not null,
  labels text not null,
  metadata_json text not null,
  metrics text not null,
  status text not null,
  status_message text not null,
  writer_id text not null,
  writer_epoch integer not null,
  writer_actor text not null default '',
  next_step_number integer not null,
  reward_sum not null,
  byte_sum integer not null,
  hidden integer not null,
  create_time text not null,
  update_time text not null,
  seal_time text,
  run integer,
  experiment integer,
  depth integer not null,
  purging integer not null default 0,
  trimming integer not null default 0,
  branch_reward_sum,
  timed_turns integer not null default 0,
  turn_seconds not null default 0,
  min_reward,
  max_reward,
  scored_metrics text not null default '[]',
  merged_to integer not null default 0,
  indexed_to integer not null default 0,
  create_digest text not null default '',
  created_by_open integer not null default 0
);
create unique index trajectories_by_tree on trajectories (tree, key);
create unique index trajectories_by_id on trajectories (namespace, id);
create index trajectories_by_key on trajectories (namespace, key);
create index trajectories_by_task on trajectories (namespace, task_id, key);
create index trajectories_by_parent on trajectories (tree, parent, branch_point);
create index trajectories_by_run on trajectories (run, key) where run is not null;
create index trajectories_by_experiment on trajectories (experiment, key) where experiment is not null;
create index trajectories_purging on trajectories (tree, key) where purging;
create index trajectories_trimming on trajectories (tree, key) where trimming;
create index trajectories_without_run on trajectories (namespace, key) where run is null;

-- Ids of deleted trajectories that were created when they were opened. They expire.
create table deleted_trajectories (
  namespace text not null,
  id text not null,
  delete_time text not null,
  primary key (namespace, id)
) without rowid;
create index deleted_trajectories_by_time on deleted_trajectories (delete_time);

-- Trajectories that are being imported. They are hidden until the import has all their steps.
create table trajectory_imports (
  tree integer not null,
  trajectory integer not null,
  namespace text not null,
  renew_time text not null,
  primary key (tree, trajectory)
) without rowid;

-- Names of steps.
create table tags (
  tree integer not null,
  trajectory integer not null,
  name text not null,
  namespace text not null,
  step_number integer not null,
  update_time text not null,
  primary key (tree, trajectory, name)
) without rowid;

-- Segments: consecutive own steps of a trajectory in one row, in protobuf encoding. Texts are JSON.
create table segments (
  tree integer not null,
  trajectory integer not null,
  first_step_number integer not null,
  next_step_number integer not null,
  namespace text not null,
  writer_epoch integer not null,
  commit_time text not null,
  commits text,
  last_commit_time text,
  reward_sum not null,
  byte_sum integer not null,
  rewards text not null,
  min_reward,
  max_reward,
  ends text not null,
  metric_sums text not null,
  state_names text not null,
  labels text not null,
  checksum integer not null,
  encoding integer not null default 1,
  body_bytes integer,
  states_bytes integer,
  body blob not null,
  states blob not null
);
create unique index segments_by_trajectory on segments (tree, trajectory, first_step_number);
create index segments_with_states on segments (tree, trajectory, first_step_number)
  where state_names <> '[]' and body_bytes is not null;
create index segments_by_reward on segments (tree, trajectory, max_reward, first_step_number, min_reward, body_bytes)
  where max_reward is not null and body_bytes is not null;

-- A row for each step.
create view steps as
  select s.tree, s.trajectory, s.first_step_number + r.key as step_number, s.namespace,
    case r.type when 'text' then case r.value when 'Infinity' then 9e999 when '-Infinity' then -9e999 else r.value end
      when 'null' then null else cast(r.value as real) end as reward,
    coalesce((s.ends ->> cast(r.key as text)) & 1, 0) as terminated,
    coalesce(((s.ends ->> cast(r.key as text)) >> 1) & 1, 0) as truncated,
    case when s.commits is null then s.commit_time
      else s.commits ->> ('$[0][' || (s.commits ->> ('$[1][' || r.key || ']')) || '][1]') end as commit_time,
    s.first_step_number, s.next_step_number
  from segments as s cross join json_each(s.rewards) as r;

-- An index of the segments that have states of a name, or a label. Names are JSON: a text for a state, a list of key and
-- value for a label. The index has segments with body_bytes, so that plain appends do not write it. Every segment that
-- begins before trajectories.indexed_to has body_bytes.
create table segment_names (
  tree integer not null,
  trajectory integer not null,
  name text not null,
  first_step_number integer not null,
  primary key (tree, trajectory, name, first_step_number)
) without rowid;

-- Values of the step metrics that trajectories declare, so that lists can sort steps by them.
create table step_scores (
  tree integer not null,
  trajectory integer not null,
  step_number integer not null,
  metric text not null,
  namespace text not null,
  value not null,
  primary key (tree, trajectory, step_number, metric)
) without rowid;
create index step_scores_by_value on step_scores (tree, trajectory, metric, value, step_number);

-- States, by digest. A state can be stored as the changes of another one, its base.
create table states (
  key integer primary key autoincrement,
  namespace text not null,
  digest blob not null,
  size integer not null,
  encoding text not null,
  base blob,
  depth integer not null default 0,
  base_bytes integer not null default 0,
  collected integer not null default 0,
  upload text,
  referenced integer not null,
  version integer not null,
  renew_time text not null,
  data blob,
  unique (namespace, digest)
);
create index states_unreferenced on states (renew_time) where not referenced;
create index states_by_base on states (namespace, base) where base is not null;
create index states_collected on states (namespace, digest) where collected;

-- Uploads of large states that have not ended or whose chunks hold a state.
create table state_uploads (
  upload text primary key,
  namespace text not null,
  renew_time text not null
);

-- Pieces of large states. A piece can refer to an equal piece of an earlier state (piece_upload).
create table state_chunks (
  upload text not null,
  ordinal integer not null,
  namespace text not null,
  digest blob not null,
  size integer not null,
  encoding text not null,
  piece_upload text,
  data blob,
  primary key (upload, ordinal)
);
create index state_chunks_by_piece on state_chunks (piece_upload, ordinal) where piece_upload is not null;

-- References of steps to states, by row key. The name is empty for a state that a content names.
create table state_refs (
  tree integer not null,
  trajectory integer not null,
  step_number integer not null,
  name text not null,
  namespace text not null,
  state integer not null,
  primary key (tree, trajectory, step_number, name, state)
) without rowid;
create index state_refs_by_state on state_refs (state, tree, trajectory, step_number);

-- States that were attached to stored steps and are not in the segments of these steps.
create table attached_states (
  tree integer not null,
  trajectory integer not null,
  step_number integer not null,
  name text not null,
  namespace text not null,
  digest blob not null,
  media_type text not null,
  size integer not null,
  pruned_time text,
  attach_time text not null,
  data blob,
  primary key (tree, trajectory, step_number, name)
) without rowid;

-- The history of trajectories, runs, stages, rollouts and environments. For all but trajectories, tree is the key of
-- the run.
create table status_changes (
  tree integer not null,
  entity_kind text not null,
  entity integer not null,
  ordinal integer not null,
  namespace text not null,
  old_status text,
  new_status text not null,
  phase text not null,
  message text not null,
  metadata_json text not null,
  actor text not null,
  progress_percent real,
  change_time text not null,
  primary key (tree, entity_kind, entity, ordinal)
) without rowid;

-- Idempotency keys, and what their requests created or claimed. They expire.
create table requests (
  namespace text not null,
  rpc text not null,
  request_id text not null,
  request_digest text not null,
  tree integer not null,
  resource integer not null,
  resource_id text not null,
  create_time text not null,
  claims text,
  primary key (namespace, rpc, request_id)
) without rowid;
create index requests_by_time on requests (create_time);

-- Experiments: templates of runs.
create table experiments (
  key integer primary key autoincrement,
  namespace text not null,
  id text not null,
  name text not null,
  description text not null,
  environment_name text not null,
  environment_config_json text not null,
  agent_type text not null,
  agent_config_json text not null,
  default_config_json text not null,
  max_steps integer,
  seed integer,
  tags text not null,
  metadata_json text not null,
  last_run_number integer not null,
  hidden integer not null,
  create_time text not null,
  update_time text not null
);
create unique index experiments_by_id on experiments (namespace, id);
create unique index experiments_by_name on experiments (namespace, name) where not hidden;
create index experiments_by_key on experiments (namespace, key);
create index experiments_hidden on experiments (key) where hidden;

-- Runs. mark orders changes for watchers (Changes.mark).
create table runs (
  key integer primary key autoincrement,
  namespace text not null,
  id text not null,
  experiment integer not null,
  tree integer not null,
  number integer not null,
  name text not null,
  description text not null,
  config_json text not null,
  config_overrides_json text not null,
  removed_config_paths text not null,
  labels text not null,
  metadata_json text not null,
  plan text not null,
  parent integer,
  branch_point integer,
  main_tree integer,
  main_trajectory integer,
  status text not null,
  status_message text not null,
  phase text not null,
  metrics text not null,
  result_json text not null,
  pauses text not null default '',
  heartbeat_timeout_ms integer not null,
  fail_when_stale integer not null,
  heartbeat_time text,
  stale_time text,
  start_time text,
  end_time text,
  create_time text not null,
  update_time text not null,
  status_changes integer not null,
  revision integer not null,
  mark integer not null,
  hidden integer not null
);
create unique index runs_by_id on runs (namespace, id);
create unique index runs_by_name on runs (experiment, name) where not hidden;
create unique index runs_by_number on runs (experiment, number);
create index runs_by_key on runs (namespace, key);
create index runs_by_experiment on runs (experiment, key);
create index runs_by_tree on runs (tree, key);
create index runs_by_parent on runs (parent) where parent is not null;
create index runs_stale on runs (stale_time) where fail_when_stale and status in ('INITIALIZING', 'RUNNING');
create index runs_hidden on runs (key) where hidden;

-- Stages of runs.
create table stages (
  key integer primary key autoincrement,
  namespace text not null,
  id text not null,
  run integer not null,
  kind text not null,
  number integer not null,
  batch integer,
  status text not null,
  status_message text not null,
  phase text not null,
  model_uri text not null,
  model_checkpoint_uri text not null,
  metrics text not null,
  metadata_json text not null,
  completed_substeps integer not null,
  total_substeps integer,
  timings text not null,
  timed_substeps integer not null,
  substep_seconds real not null,
  substeps_time text,
  end_expected_turns real,
  end_expected_substeps real,
  end_share real,
  queue_close_time text,
  start_time text,
  end_time text,
  create_time text not null,
  update_time text not null,
  status_changes integer not null,
  revision integer not null,
  mark integer not null
);
create unique index stages_by_id on stages (namespace, id);
create unique index stages_by_number on stages (run, kind, number);
create index stages_by_run on stages (run, key);
create index stages_by_mark on stages (run, mark);
create index stages_open on stages (namespace, run) where status in ('PENDING', 'INITIALIZING', 'RUNNING', 'PAUSED');

-- Metric series of runs and stages.
create table metric_series (
  key integer primary key autoincrement,
  namespace text not null,
  run integer not null,
  stage integer not null,
  name text not null
);
create unique index metric_series_by_name on metric_series (run, stage, name);

-- Points of metric series. A series is one range of the primary key.
create table metric_points (
  series integer not null,
  metric_step integer not null,
  namespace text not null,
  value not null,
  primary key (series, metric_step)
) without rowid;

-- The catalogue of tasks.
create table tasks (
  key integer primary key autoincrement,
  namespace text not null,
  id text not null,
  name text not null,
  description text not null,
  difficulty text not null,
  category text not null,
  app_name text not null,
  source_type text not null,
  max_turns integer,
  tags text not null,
  prerequisites text not null,
  input_json text not null,
  metadata_json text not null,
  create_time text not null,
  update_time text not null
);
create unique index tasks_by_id on tasks (namespace, id);
create index tasks_by_key on tasks (namespace, key);

-- Validators of tasks.
create table validators (
  key integer primary key autoincrement,
  namespace text not null,
  id text not null,
  task integer not null,
  type text not null,
  query text not null,
  method text not null,
  expected_result text not null,
  config_json text not null,
  advisory integer not null,
  create_time text not null,
  update_time text not null
);
create unique index validators_by_id on validators (namespace, id);
create unique index validators_by_type on validators (task, type);

-- Groups of rollouts. A group counts its rollouts, the terminal ones and the time of their turns, so that progress
-- joins live rollouts only.
create table groups (
  key integer primary key autoincrement,
  namespace text not null,
  id text not null,
  run integer not null,
  stage integer not null,
  number integer not null,
  batch integer,
  on_success text not null,
  labels text not null,
  metrics text not null,
  metadata_json text not null,
  rollouts integer not null,
  terminal_rollouts integer not null,
  tried_rollouts integer not null,
  terminal_turns integer not null,
  timed_turns integer not null,
  turn_seconds real not null,
  create_time text not null,
  update_time text not null,
  revision integer not null,
  mark integer not null
);
create unique index groups_by_id on groups (namespace, id);
create unique index groups_by_number on groups (stage, number);
create index groups_by_mark on groups (run, mark);
create index groups_by_run on groups (run, key);

-- Rollouts, with the values of their current attempt. PENDING ones have their own indexes, so that the cost of a claim
-- does not grow with the queue. The same holds for leases.
create table rollouts (
  key integer primary key autoincrement,
  namespace text not null,
  id text not null,
  run integer not null,
  stage integer not null,
  group_key integer not null,
  group_number integer not null,
  number integer not null,
  task integer,
  input_json text not null,
  labels text not null,
  priority integer not null,
  max_turns integer,
  max_attempts integer not null,
  attempt_timeout_ms integer,
  retry_delay_ms integer not null default 1000,
  start_trajectory text,
  start_step integer,
  model_uri text not null,
  metadata_json text not null,
  refunded_attempts integer not null default 0,
  status text not null,
  status_message text not null,
  phase text not null,
  attempt integer not null,
  tree integer,
  trajectory integer,
  worker_id text not null,
  claimer text not null,
  lease_ms integer not null,
  lease_end_time text,
  attempt_end_time text,
  paused_us integer not null default 0,
  result text not null,
  summary_json text not null,
  result_success integer,
  validation_passed integer,
  override integer,
  success integer,
  reward,
  turns integer not null,
  metrics text not null,
  timings text not null,
  first_given text not null default '',
  claimable_time text not null,
  start_time text,
  end_time text,
  create_time text not null,
  update_time text not null,
  status_changes integer not null,
  revision integer not null,
  mark integer not null
);
create unique index rollouts_by_id on rollouts (namespace, id);
create unique index rollouts_by_number on rollouts (group_key, number);
create index rollouts_by_place on rollouts (run, stage, group_number, number);
create index rollouts_by_mark on rollouts (run, mark);
create index rollouts_leased on rollouts (lease_end_time) where status in ('INITIALIZING', 'RUNNING');
create index rollouts_live on rollouts (run, stage) where status in ('INITIALIZING', 'RUNNING');
create index rollouts_queue on rollouts (stage, priority desc, key, claimable_time) where status = 'PENDING';
create index rollouts_queue_by_task on rollouts (stage, task, priority desc, key, claimable_time)
  where status = 'PENDING' and task is not null;
create index rollouts_by_task on rollouts (task, key) where task is not null;

-- Attempts of rollouts, each with its own result and verdict.
create table attempts (
  rollout integer not null,
  number integer not null,
  namespace text not null,
  tree integer not null,
  trajectory integer not null,
  status text not null,
  message text not null,
  worker_id text not null,
  claim_time text not null,
  end_time text,
  result text not null default '',
  summary_json text not null default '',
  result_success integer,
  validation_passed integer,
  override integer,
  success integer,
  reward,
  turns integer not null default 0,
  metrics text not null default '{}',
  timings text not null default '{}',
  claimable_time text not null,
  start_time text,
  end_digest text not null default '',
  primary key (rollout, number)
) without rowid;
create index attempts_by_worker on attempts (namespace, worker_id, rollout);

-- Validations of attempts, by name.
create table validations (
  rollout integer not null,
  attempt integer not null,
  name text not null,
  validator integer,
  namespace text not null,
  advisory integer not null,
  success integer not null,
  query text not null,
  expected_result text not null,
  actual_result text not null,
  execution_ms integer,
  error_message text not null,
  details_json text not null,
  record_time text not null,
  primary key (rollout, attempt, name)
) without rowid;

-- Verdicts that override validations.
create table validation_overrides (
  rollout integer not null,
  ordinal integer not null,
  attempt integer not null,
  namespace text not null,
  success integer,
  reason text not null,
  actor text not null,
  override_time text not null,
  primary key (rollout, ordinal)
) without rowid;

-- Environments of runs.
create table environments (
  key integer primary key autoincrement,
  namespace text not null,
  id text not null,
  run integer not null,
  type text not null,
  external_id text not null,
  status text not null,
  status_message text not null,
  phase text not null,
  labels text not null,
  config_json text not null,
  start_time text,
  end_time text,
  create_time text not null,
  update_time text not null,
  status_changes integer not null
);
create unique index environments_by_id on environments (namespace, id);
create index environments_by_run on environments (run, key);

-- The environments of attempts.
create table rollout_environments (
  rollout integer not null,
  attempt integer not null,
  environment integer not null,
  namespace text not null,
  primary key (rollout, attempt, environment)
) without rowid;
create index rollout_environments_by_environment on rollout_environments (environment);

-- Requests to cancel the rollouts of whole runs and stages, which any server can continue.
create table rollout_cancellations (
  run integer not null,
  stage integer not null,
  namespace text not null,
  actor text not null,
  message text not null,
  metadata_json text not null,
  cancelled integer not null,
  open integer not null,
  primary key (run, stage)
) without rowid;
create index rollout_cancellations_open on rollout_cancellations (run, stage) where open;

-- Policies that servers apply regularly.
create table retention_policies (
  namespace text not null,
  name text not null,
  run integer,
  experiment integer,
  policy text not null,
  interval_ms integer not null,
  create_time text not null,
  update_time text not null,
  due_time text not null,
  lease text,
  lease_end_time text,
  last_start_time text,
  last_end_time text,
  last_removed text not null,
  last_error_reason text not null,
  last_error_message text not null,
  primary key (namespace, name)
) without rowid;
create index retention_policies_due on retention_policies (due_time);
create index retention_policies_by_run on retention_policies (run) where run is not null;
create index retention_policies_by_experiment on retention_policies (experiment) where experiment is not null;

-- The instance that runs the background jobs, until its lease ends. It has at most one row.
create table job_leases (
  jobs text primary key,
  holder text not null,
  end_time text not null
);

-- API keys of the installation, and the digests of their secrets.
create table api_keys (
  id text primary key,
  name text not null,
  role text not null,
  namespaces text not null,
  digest blob not null,
  create_time text not null,
  expire_time text,
  revoke_time text
) without rowid;
create unique index api_keys_by_digest on api_keys (digest);

-- Secrets that seal page and resume tokens. The one with the largest number seals, and all of them open.
create table token_keys (
  number integer primary key,
  secret blob not null
);
-- The generator of SQLite is a stream cipher, whose key comes from the system.
insert into token_keys (number, secret) values (1, randomblob(32));

-- The newest change mark. One transaction writes at a time, so a counter orders changes.
create table change_marks (
  mark integer not null
);
insert into change_marks (mark) values (0);
`;

/**
 * SQLite plans without looking at the data, and assumes that ten rows share a namespace. To find the rows of a few runs
 * of a namespace, it would read the whole namespace. These statistics describe a large store: nearly all rows are in
 * one namespace, and few are hidden, open or being removed. Results of an operator's `ANALYZE` replace them.
 */
export const SQLITE_STATISTICS = `
-- Analysing a tiny table creates the table of statistics.
analyze kysely_migration_lock;
insert into sqlite_stat1 (tbl, idx, stat) values
  ('environments', 'environments_by_id', '1048576 1048576 1'),
  ('experiments', 'experiments_by_id', '1048576 1048576 1'),
  ('experiments', 'experiments_by_key', '1048576 1048576 1'),
  ('experiments', 'experiments_by_name', '1048576 1048576 1'),
  ('experiments', 'experiments_hidden', '4 1'),
  ('groups', 'groups_by_id', '1048576 1048576 1'),
  ('requests', 'sqlite_autoindex_requests_1', '1048576 1048576 1048576 1'),
  ('rollouts', 'rollouts_by_id', '1048576 1048576 1'),
  ('runs', 'runs_by_id', '1048576 1048576 1'),
  ('runs', 'runs_by_key', '1048576 1048576 1'),
  ('runs', 'runs_hidden', '4 1'),
  ('stages', 'stages_by_id', '1048576 1048576 1'),
  ('stages', 'stages_open', '1024 1024 8'),
  ('states', 'sqlite_autoindex_states_1', '1048576 1048576 1'),
  ('states', 'states_by_base', '1048576 1048576 2'),
  ('states', 'states_collected', '1024 1024 1'),
  ('tasks', 'tasks_by_id', '1048576 1048576 1'),
  ('tasks', 'tasks_by_key', '1048576 1048576 1'),
  ('trajectories', 'trajectories_by_id', '1048576 1048576 1'),
  ('trajectories', 'trajectories_by_key', '1048576 1048576 1'),
  ('trajectories', 'trajectories_by_task', '1048576 1048576 100 1'),
  ('trajectories', 'trajectories_purging', '4 4 1'),
  ('trajectories', 'trajectories_trimming', '4 4 1'),
  ('validators', 'validators_by_id', '1048576 1048576 1');
-- The connection reads them.
analyze sqlite_schema;
`;
