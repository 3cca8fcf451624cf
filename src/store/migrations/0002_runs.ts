import type { MigrationText } from './migration.ts';

/**
 * Experiments, runs, stages and metrics. Trajectories can belong to a run and an experiment.
 * - `mark` orders changes for watchers. On Postgres it is the transaction id, which a snapshot can be compared with. On
 *   SQLite, where one transaction writes at a time, it is a counter.
 * - The history of runs and stages is in `status_changes`, with the run's key as `tree`.
 * - Metric points are keyed by series, so that a series is one range of an index that includes the values. In the
 *   table, the series of a run are interleaved, and reading one costs ten times as much.
 * - Values have no declared type in SQLite, because `real` would drop the sign of negative zero.
 */
export const migration0002: MigrationText = {
  name: '0002_runs',
  postgres: `
    create sequence run_keys;
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
    create unique index experiments_by_name on experiments (namespace, name) where not hidden;
    create index experiments_by_key on experiments (namespace, key);
    create index experiments_hidden on experiments (key) where hidden;

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
    create unique index runs_by_id on runs (namespace, id);
    create unique index runs_by_name on runs (experiment, name) where not hidden;
    create unique index runs_by_number on runs (experiment, number);
    create index runs_by_key on runs (namespace, key);
    create index runs_by_experiment on runs (experiment, key);
    create index runs_by_tree on runs (tree, key);
    create index runs_by_parent on runs (parent) where parent is not null;
    create index runs_stale on runs (stale_time) where fail_when_stale and status in ('INITIALIZING', 'RUNNING');
    create index runs_hidden on runs (key) where hidden;

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
      start_time timestamptz,
      end_time timestamptz,
      create_time timestamptz not null,
      update_time timestamptz not null,
      status_changes bigint not null,
      revision bigint not null,
      mark bigint not null
    ) with (fillfactor = 80);
    create unique index stages_by_id on stages (namespace, id);
    create unique index stages_by_number on stages (run, kind, number);
    create index stages_by_run on stages (run, key);
    create index stages_by_mark on stages (run, mark);

    create table metric_series (
      key bigint primary key,
      namespace text not null,
      run bigint not null,
      stage bigint not null,
      name text collate "C" not null
    );
    create unique index metric_series_by_name on metric_series (run, stage, name);

    create table metric_points (
      series bigint not null,
      metric_step bigint not null,
      namespace text not null,
      value double precision not null,
      primary key (series, metric_step) include (value)
    );

    alter table trajectories add column run bigint;
    alter table trajectories add column experiment bigint;
    create index trajectories_by_run on trajectories (run, key) where run is not null;
    create index trajectories_by_experiment on trajectories (experiment, key) where experiment is not null;
  `,
  sqlite: `
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

    create table metric_series (
      key integer primary key autoincrement,
      namespace text not null,
      run integer not null,
      stage integer not null,
      name text not null
    );
    create unique index metric_series_by_name on metric_series (run, stage, name);

    create table metric_points (
      series integer not null,
      metric_step integer not null,
      namespace text not null,
      value not null,
      primary key (series, metric_step)
    ) without rowid;

    alter table trajectories add column run integer;
    alter table trajectories add column experiment integer;
    create index trajectories_by_run on trajectories (run, key) where run is not null;
    create index trajectories_by_experiment on trajectories (experiment, key) where experiment is not null;

    create table change_marks (
      mark integer not null
    );
    insert into change_marks (mark) values (0);
  `,
};
