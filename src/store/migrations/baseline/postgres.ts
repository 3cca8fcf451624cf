/** The schema on Postgres. */
export const POSTGRES_TABLES = `
-- Row keys of trajectories, and of everything else that has a key. They rise and are never reused. States take
-- theirs by default, because an append does not ask for keys first.
create sequence trajectory_keys;
create sequence run_keys;

-- Trajectories. tree is the row key of the root. Every hot key begins with it, so that the rows of a tree are stored
-- together and can be distributed by it. Row keys rise and are never reused. reward_sum and byte_sum are running sums
-- along the lineage, which the appending transaction updates, so that a branch or a total reads one row.
create table trajectories (
  tree bigint not null,
  key bigint not null,
  namespace text not null,
  id uuid not null,
  uid uuid not null,
  parent bigint,
  branch_point bigint,
  name text not null,
  task_id text not null,
  labels text not null,
  metadata_json text not null,
  metrics text not null,
  status text not null,
  status_message text not null,
  writer_id text not null,
  writer_epoch bigint not null,
  writer_actor text not null default '',
  next_step_number bigint not null,
  reward_sum double precision not null,
  byte_sum bigint not null,
  hidden boolean not null,
  create_time timestamptz not null,
  update_time timestamptz not null,
  seal_time timestamptz,
  run bigint,
  experiment bigint,
  depth bigint not null,
  purging boolean not null default false,
  trimming boolean not null default false,
  branch_reward_sum double precision,
  timed_turns bigint not null default 0,
  turn_seconds double precision not null default 0,
  min_reward double precision,
  max_reward double precision,
  scored_metrics text not null default '[]',
  merged_to bigint not null default 0,
  indexed_to bigint not null default 0,
  create_digest text not null default '',
  created_by_open boolean not null default false,
  primary key (tree, key)
) with (fillfactor = 50);
create index trajectories_by_experiment on trajectories (experiment, key) where experiment is not null;
create unique index trajectories_by_id on trajectories (namespace, id);
create index trajectories_by_key on trajectories (namespace, key);
create index trajectories_by_parent on trajectories (tree, parent, branch_point) where parent is not null;
create index trajectories_by_run on trajectories (run, key) where run is not null;
create index trajectories_by_task on trajectories (namespace, task_id, key);
create index trajectories_purging on trajectories (tree, key) where purging;
create index trajectories_trimming on trajectories (tree, key) where trimming;
create index trajectories_without_run on trajectories (namespace, key) where run is null;

-- Ids of deleted trajectories that were created when they were opened. They expire.
create table deleted_trajectories (
  namespace text not null,
  id uuid not null,
  delete_time timestamptz not null,
  primary key (namespace, id)
);
create index deleted_trajectories_by_time on deleted_trajectories (delete_time);

-- Trajectories that are being imported. They are hidden until the import has all their steps.
create table trajectory_imports (
  tree bigint not null,
  trajectory bigint not null,
  namespace text not null,
  renew_time timestamptz not null,
  primary key (tree, trajectory)
);

-- Names of steps.
create table tags (
  tree bigint not null,
  trajectory bigint not null,
  name text collate "C" not null,
  namespace text not null,
  step_number bigint not null,
  update_time timestamptz not null,
  primary key (tree, trajectory, name)
);

-- Segments: consecutive own steps of a trajectory in one row, in protobuf encoding. Texts are JSON.
create table segments (
  tree bigint not null,
  trajectory bigint not null,
  first_step_number bigint not null,
  next_step_number bigint not null,
  namespace text not null,
  writer_epoch bigint not null,
  commit_time timestamptz not null,
  commits text,
  last_commit_time timestamptz,
  reward_sum double precision not null,
  byte_sum bigint not null,
  rewards text not null,
  min_reward double precision,
  max_reward double precision,
  ends text not null,
  metric_sums text not null,
  state_names text not null,
  labels text not null,
  checksum bigint not null,
  encoding bigint not null default 1,
  body_bytes bigint,
  states_bytes bigint,
  body bytea not null,
  states bytea not null,
  primary key (tree, trajectory, first_step_number)
);
alter table segments alter column body set storage external;
alter table segments alter column states set storage external;
create index segments_by_reward on segments (tree, trajectory, max_reward, first_step_number, min_reward, body_bytes)
  where max_reward is not null and body_bytes is not null;
create index segments_with_states on segments (tree, trajectory, first_step_number)
  where state_names <> '[]' and body_bytes is not null;

-- A row for each step. Lists are parsed once for each segment.
create view steps as
  select s.tree, s.trajectory, s.first_step_number + r.number - 1 as step_number, s.namespace,
    cast(r.reward as double precision) as reward,
    coalesce(cast(c.ends ->> cast(r.number - 1 as text) as int) & 1, 0) = 1 as terminated,
    coalesce(cast(c.ends ->> cast(r.number - 1 as text) as int) & 2, 0) = 2 as truncated,
    case when s.commits is null then s.commit_time
      else cast(c.commits -> 0 -> cast(c.commits -> 1 ->> cast(r.number - 1 as int) as int) ->> 1 as timestamptz)
      end as commit_time,
    s.first_step_number, s.next_step_number
  from segments as s
    cross join lateral (
      select cast(s.rewards as json) as rewards, cast(s.ends as jsonb) as ends, cast(s.commits as jsonb) as commits
      offset 0) as c
    cross join lateral json_array_elements_text(c.rewards) with ordinality as r(reward, number);

-- A segment that is appended, without its commit time, and the end and the sums of its trajectory after the append.
create type appended_segment as (
  tree bigint,
  trajectory bigint,
  first_step_number bigint,
  next_step_number bigint,
  namespace text,
  writer_epoch bigint,
  commits text,
  last_commit_time timestamptz,
  reward_sum double precision,
  byte_sum bigint,
  rewards text,
  min_reward double precision,
  max_reward double precision,
  ends text,
  metric_sums text,
  state_names text,
  labels text,
  checksum bigint,
  encoding bigint,
  body_bytes bigint,
  states_bytes bigint,
  body bytea,
  states bytea,
  trajectory_next_step_number bigint,
  trajectory_reward_sum double precision,
  trajectory_byte_sum bigint,
  trajectory_branch_reward_sum double precision,
  trajectory_timed_turns bigint,
  trajectory_turn_seconds double precision,
  trajectory_min_reward double precision,
  trajectory_max_reward double precision
);

-- An index of the segments that have states of a name, or a label. Names are JSON: a text for a state, a list of key and
-- value for a label. The index has segments with body_bytes, so that plain appends do not write it. Every segment that
-- begins before trajectories.indexed_to has body_bytes.
create table segment_names (
  tree bigint not null,
  trajectory bigint not null,
  name text collate "C" not null,
  first_step_number bigint not null,
  primary key (tree, trajectory, name, first_step_number)
);

-- Values of the step metrics that trajectories declare, so that lists can sort steps by them.
create table step_scores (
  tree bigint not null,
  trajectory bigint not null,
  step_number bigint not null,
  metric text collate "C" not null,
  namespace text not null,
  value double precision not null,
  primary key (tree, trajectory, step_number, metric)
);
create index step_scores_by_value on step_scores (tree, trajectory, metric, value, step_number);

-- States, by digest. A state can be stored as the changes of another one, its base.
create table states (
  key bigint not null default nextval('run_keys'),
  namespace text not null,
  digest bytea not null,
  size bigint not null,
  encoding text not null,
  base bytea,
  depth bigint not null default 0,
  base_bytes bigint not null default 0,
  collected boolean not null default false,
  upload uuid,
  referenced boolean not null,
  version bigint not null,
  renew_time timestamptz not null,
  data bytea,
  primary key (namespace, digest)
);
alter table states alter column data set storage external;
create index states_by_base on states (namespace, base) where base is not null;
create unique index states_by_key on states (key);
create index states_collected on states (namespace, digest) where collected;
create index states_unreferenced on states (renew_time) where not referenced;

-- Uploads of large states that have not ended or whose chunks hold a state.
create table state_uploads (
  upload uuid primary key,
  namespace text not null,
  renew_time timestamptz not null
);

-- Pieces of large states. A piece can refer to an equal piece of an earlier state (piece_upload).
create table state_chunks (
  upload uuid not null,
  ordinal bigint not null,
  namespace text not null,
  digest bytea not null,
  size bigint not null,
  encoding text not null,
  piece_upload uuid,
  data bytea,
  primary key (upload, ordinal)
);
alter table state_chunks alter column data set storage external;
create index state_chunks_by_piece on state_chunks (piece_upload, ordinal) where piece_upload is not null;

-- References of steps to states, by row key. The name is empty for a state that a content names.
create table state_refs (
  tree bigint not null,
  trajectory bigint not null,
  step_number bigint not null,
  name text collate "C" not null,
  namespace text not null,
  state bigint not null,
  primary key (tree, trajectory, step_number, name, state)
);
create index state_refs_by_state on state_refs (state, tree, trajectory, step_number);

-- States that were attached to stored steps and are not in the segments of these steps.
create table attached_states (
  tree bigint not null,
  trajectory bigint not null,
  step_number bigint not null,
  name text not null,
  namespace text not null,
  digest bytea not null,
  media_type text not null,
  size bigint not null,
  pruned_time timestamptz,
  attach_time timestamptz not null,
  data bytea,
  primary key (tree, trajectory, step_number, name)
);

-- The history of trajectories, runs, stages, rollouts and environments. For all but trajectories, tree is the key of
-- the run.
create table status_changes (
  tree bigint not null,
  entity_kind text not null,
  entity bigint not null,
  ordinal bigint not null,
  namespace text not null,
  old_status text,
  new_status text not null,
  phase text not null,
  message text not null,
  metadata_json text not null,
  actor text not null,
  progress_percent double precision,
  change_time timestamptz not null,
  primary key (tree, entity_kind, entity, ordinal)
);

-- Idempotency keys, and what their requests created or claimed. They expire.
create table requests (
  namespace text not null,
  rpc text not null,
  request_id text not null,
  request_digest text not null,
  tree bigint not null,
  resource bigint not null,
  resource_id uuid not null,
  create_time timestamptz not null,
  claims text,
  primary key (namespace, rpc, request_id)
);
create index requests_by_time on requests (create_time);

-- Experiments: templates of runs.
create table experiments (
  key bigint primary key,
  namespace text not null,
  id uuid not null,
  name text not null,
  description text not null,
  environment_name text not null,
  environment_config_json text not null,
  agent_type text not null,
  agent_config_json text not null,
  default_config_json text not null,
  max_steps bigint,
  seed bigint,
  tags text not null,
  metadata_json text not null,
  last_run_number bigint not null,
  hidden boolean not null,
  create_time timestamptz not null,
  update_time timestamptz not null
);
create unique index experiments_by_id on experiments (namespace, id);
create index experiments_by_key on experiments (namespace, key);
create unique index experiments_by_name on experiments (namespace, name) where not hidden;
create index experiments_hidden on experiments (key) where hidden;

-- Runs. mark orders changes for watchers (Changes.mark).
create table runs (
  key bigint primary key,
  namespace text not null,
  id uuid not null,
  experiment bigint not null,
  tree bigint not null,
  number bigint not null,
  name text not null,
  description text not null,
  config_json text not null,
  config_overrides_json text not null,
  removed_config_paths text not null,
  labels text not null,
  metadata_json text not null,
  plan text not null,
  parent bigint,
  branch_point bigint,
  main_tree bigint,
  main_trajectory bigint,
  status text not null,
  status_message text not null,
  phase text not null,
  metrics text not null,
  result_json text not null,
  pauses text not null default '',
  heartbeat_timeout_ms bigint not null,
  fail_when_stale boolean not null,
  heartbeat_time timestamptz,
  stale_time timestamptz,
  start_time timestamptz,
  end_time timestamptz,
  create_time timestamptz not null,
  update_time timestamptz not null,
  status_changes bigint not null,
  revision bigint not null,
  mark bigint not null,
  hidden boolean not null
) with (fillfactor = 80);
create index runs_by_experiment on runs (experiment, key);
create unique index runs_by_id on runs (namespace, id);
create index runs_by_key on runs (namespace, key);
create unique index runs_by_name on runs (experiment, name) where not hidden;
create unique index runs_by_number on runs (experiment, number);
create index runs_by_parent on runs (parent) where parent is not null;
create index runs_by_tree on runs (tree, key);
create index runs_hidden on runs (key) where hidden;
create index runs_stale on runs (stale_time) where fail_when_stale and status in ('INITIALIZING', 'RUNNING');

-- Stages of runs.
create table stages (
  key bigint primary key,
  namespace text not null,
  id uuid not null,
  run bigint not null,
  kind text not null,
  number bigint not null,
  batch bigint,
  status text not null,
  status_message text not null,
  phase text not null,
  model_uri text not null,
  model_checkpoint_uri text not null,
  metrics text not null,
  metadata_json text not null,
  completed_substeps bigint not null,
  total_substeps bigint,
  timings text not null,
  timed_substeps bigint not null,
  substep_seconds double precision not null,
  substeps_time timestamptz,
  end_expected_turns double precision,
  end_expected_substeps double precision,
  end_share double precision,
  queue_close_time timestamptz,
  start_time timestamptz,
  end_time timestamptz,
  create_time timestamptz not null,
  update_time timestamptz not null,
  status_changes bigint not null,
  revision bigint not null,
  mark bigint not null
) with (fillfactor = 80);
create unique index stages_by_id on stages (namespace, id);
create index stages_by_mark on stages (run, mark);
create unique index stages_by_number on stages (run, kind, number);
create index stages_by_run on stages (run, key);
create index stages_open on stages (namespace, run) where status in ('PENDING', 'INITIALIZING', 'RUNNING', 'PAUSED');

-- Metric series of runs and stages.
create table metric_series (
  key bigint primary key,
  namespace text not null,
  run bigint not null,
  stage bigint not null,
  name text collate "C" not null
);
create unique index metric_series_by_name on metric_series (run, stage, name);

-- Points of metric series. A series is one range of the primary key.
create table metric_points (
  series bigint not null,
  metric_step bigint not null,
  namespace text not null,
  value double precision not null,
  primary key (series, metric_step) include (value)
);

-- The catalogue of tasks.
create table tasks (
  key bigint primary key,
  namespace text not null,
  id text not null,
  name text not null,
  description text not null,
  difficulty text not null,
  category text not null,
  app_name text not null,
  source_type text not null,
  max_turns bigint,
  tags text not null,
  prerequisites text not null,
  input_json text not null,
  metadata_json text not null,
  create_time timestamptz not null,
  update_time timestamptz not null
);
create unique index tasks_by_id on tasks (namespace, id);
create index tasks_by_key on tasks (namespace, key);

-- Validators of tasks.
create table validators (
  key bigint primary key,
  namespace text not null,
  id uuid not null,
  task bigint not null,
  type text collate "C" not null,
  query text not null,
  method text not null,
  expected_result text not null,
  config_json text not null,
  advisory boolean not null,
  create_time timestamptz not null,
  update_time timestamptz not null
);
create unique index validators_by_id on validators (namespace, id);
create unique index validators_by_type on validators (task, type);

-- Groups of rollouts. A group counts its rollouts, the terminal ones and the time of their turns, so that progress
-- joins live rollouts only.
create table groups (
  key bigint primary key,
  namespace text not null,
  id uuid not null,
  run bigint not null,
  stage bigint not null,
  number bigint not null,
  batch bigint,
  on_success text not null,
  labels text not null,
  metrics text not null,
  metadata_json text not null,
  rollouts bigint not null,
  terminal_rollouts bigint not null,
  tried_rollouts bigint not null,
  terminal_turns bigint not null,
  timed_turns bigint not null,
  turn_seconds double precision not null,
  create_time timestamptz not null,
  update_time timestamptz not null,
  revision bigint not null,
  mark bigint not null
) with (fillfactor = 70);
create unique index groups_by_id on groups (namespace, id);
create index groups_by_mark on groups (run, mark, key);
create unique index groups_by_number on groups (stage, number);
create index groups_by_run on groups (run, key);

-- Rollouts, with the values of their current attempt. PENDING ones have their own indexes, so that the cost of a claim
-- does not grow with the queue. The same holds for leases.
create table rollouts (
  key bigint primary key,
  namespace text not null,
  id uuid not null,
  run bigint not null,
  stage bigint not null,
  group_key bigint not null,
  group_number bigint not null,
  number bigint not null,
  task bigint,
  input_json text not null,
  labels text not null,
  priority bigint not null,
  max_turns bigint,
  max_attempts bigint not null,
  attempt_timeout_ms bigint,
  retry_delay_ms bigint not null default 1000,
  start_trajectory uuid,
  start_step bigint,
  model_uri text not null,
  metadata_json text not null,
  refunded_attempts bigint not null default 0,
  status text not null,
  status_message text not null,
  phase text not null,
  attempt bigint not null,
  tree bigint,
  trajectory bigint,
  worker_id text not null,
  claimer text not null,
  lease_ms bigint not null,
  lease_end_time timestamptz,
  attempt_end_time timestamptz,
  paused_us bigint not null default 0,
  result text not null,
  summary_json text not null,
  result_success boolean,
  validation_passed boolean,
  override boolean,
  success boolean,
  reward double precision,
  turns bigint not null,
  metrics text not null,
  timings text not null,
  first_given text not null default '',
  claimable_time timestamptz not null,
  start_time timestamptz,
  end_time timestamptz,
  create_time timestamptz not null,
  update_time timestamptz not null,
  status_changes bigint not null,
  revision bigint not null,
  mark bigint not null
) with (fillfactor = 70);
create unique index rollouts_by_id on rollouts (namespace, id);
create index rollouts_by_mark on rollouts (run, mark, key);
create unique index rollouts_by_number on rollouts (group_key, number);
create index rollouts_by_place on rollouts (run, stage, group_number, number);
create index rollouts_by_task on rollouts (task, key) where task is not null;
create index rollouts_leased on rollouts (lease_end_time) where status in ('INITIALIZING', 'RUNNING');
create index rollouts_live on rollouts (run, stage) where status in ('INITIALIZING', 'RUNNING');
create index rollouts_queue on rollouts (stage, priority desc, key, claimable_time) where status = 'PENDING';
create index rollouts_queue_by_task on rollouts (stage, task, priority desc, key, claimable_time)
  where status = 'PENDING' and task is not null;

-- Attempts of rollouts, each with its own result and verdict.
create table attempts (
  rollout bigint not null,
  number bigint not null,
  namespace text not null,
  tree bigint not null,
  trajectory bigint not null,
  status text not null,
  message text not null,
  worker_id text not null,
  claim_time timestamptz not null,
  end_time timestamptz,
  result text not null default '',
  summary_json text not null default '',
  result_success boolean,
  validation_passed boolean,
  override boolean,
  success boolean,
  reward double precision,
  turns bigint not null default 0,
  metrics text not null default '{}',
  timings text not null default '{}',
  claimable_time timestamptz not null,
  start_time timestamptz,
  end_digest text not null default '',
  primary key (rollout, number)
);
create index attempts_by_worker on attempts (namespace, worker_id, rollout);

-- Validations of attempts, by name.
create table validations (
  rollout bigint not null,
  attempt bigint not null,
  name text collate "C" not null,
  validator bigint,
  namespace text not null,
  advisory boolean not null,
  success boolean not null,
  query text not null,
  expected_result text not null,
  actual_result text not null,
  execution_ms bigint,
  error_message text not null,
  details_json text not null,
  record_time timestamptz not null,
  primary key (rollout, attempt, name)
);

-- Verdicts that override validations.
create table validation_overrides (
  rollout bigint not null,
  ordinal bigint not null,
  attempt bigint not null,
  namespace text not null,
  success boolean,
  reason text not null,
  actor text not null,
  override_time timestamptz not null,
  primary key (rollout, ordinal)
);

-- Environments of runs.
create table environments (
  key bigint primary key,
  namespace text not null,
  id uuid not null,
  run bigint not null,
  type text not null,
  external_id text not null,
  status text not null,
  status_message text not null,
  phase text not null,
  labels text not null,
  config_json text not null,
  start_time timestamptz,
  end_time timestamptz,
  create_time timestamptz not null,
  update_time timestamptz not null,
  status_changes bigint not null
);
create unique index environments_by_id on environments (namespace, id);
create index environments_by_run on environments (run, key);

-- The environments of attempts.
create table rollout_environments (
  rollout bigint not null,
  attempt bigint not null,
  environment bigint not null,
  namespace text not null,
  primary key (rollout, attempt, environment)
);
create index rollout_environments_by_environment on rollout_environments (environment);

-- Requests to cancel the rollouts of whole runs and stages, which any server can continue.
create table rollout_cancellations (
  run bigint not null,
  stage bigint not null,
  namespace text not null,
  actor text not null,
  message text not null,
  metadata_json text not null,
  cancelled bigint not null,
  open boolean not null,
  primary key (run, stage)
);
create index rollout_cancellations_open on rollout_cancellations (run, stage) where open;

-- Policies that servers apply regularly.
create table retention_policies (
  namespace text not null,
  name text collate "C" not null,
  run bigint,
  experiment bigint,
  policy text not null,
  interval_ms bigint not null,
  create_time timestamptz not null,
  update_time timestamptz not null,
  due_time timestamptz not null,
  lease uuid,
  lease_end_time timestamptz,
  last_start_time timestamptz,
  last_end_time timestamptz,
  last_removed text not null,
  last_error_reason text not null,
  last_error_message text not null,
  primary key (namespace, name)
);
create index retention_policies_by_experiment on retention_policies (experiment) where experiment is not null;
create index retention_policies_by_run on retention_policies (run) where run is not null;
create index retention_policies_due on retention_policies (due_time);

-- The instance that runs the background jobs, until its lease ends. It has at most one row.
create table job_leases (
  jobs text primary key,
  holder uuid not null,
  end_time timestamptz not null
);

-- API keys of the installation, and the digests of their secrets.
create table api_keys (
  id uuid primary key,
  name text not null,
  role text not null,
  namespaces text not null,
  digest bytea not null,
  create_time timestamptz not null,
  expire_time timestamptz,
  revoke_time timestamptz
);
create unique index api_keys_by_digest on api_keys (digest);

-- Secrets that seal page and resume tokens. The one with the largest number seals, and all of them open.
create table token_keys (
  number bigint primary key,
  secret bytea not null
);
-- Each UUID has 122 bits of the strong generator.
insert into token_keys (number, secret) values (1, uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));
`;
