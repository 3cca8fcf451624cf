import type { MigrationText } from './migration.ts';

/**
 * The catalogue of tasks, groups, rollouts with their attempts, validations and environments.
 * - PENDING rollouts have their own indexes, so that the cost of a claim does not grow with the queue. The same holds
 *   for leases and open stages.
 * - A request stores what it claimed.
 * - A rollout's row has its verdict and, once terminal, its reward and turns. Its group counts rollouts, terminal ones
 *   and the time of their turns, so that progress joins live rollouts only.
 */
export const migration0003: MigrationText = {
  name: '0003_rollouts',
  postgres: `
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
      terminal_turns bigint not null,
      timed_turns bigint not null,
      turn_seconds double precision not null,
      create_time timestamptz not null,
      update_time timestamptz not null,
      revision bigint not null,
      mark bigint not null
    ) with (fillfactor = 70);
    create unique index groups_by_id on groups (namespace, id);
    create unique index groups_by_number on groups (stage, number);
    create index groups_by_mark on groups (run, mark);

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
      labels text not null,
      input_json text not null,
      priority bigint not null,
      max_turns bigint,
      max_attempts bigint not null,
      start_trajectory uuid,
      start_step bigint,
      model_uri text not null,
      status text not null,
      status_message text not null,
      phase text not null,
      attempt bigint not null,
      tree bigint,
      trajectory bigint,
      worker_id text not null,
      lease_ms bigint not null,
      lease_end_time timestamptz,
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
      metadata_json text not null,
      start_time timestamptz,
      end_time timestamptz,
      create_time timestamptz not null,
      update_time timestamptz not null,
      status_changes bigint not null,
      revision bigint not null,
      mark bigint not null
    ) with (fillfactor = 70);
    create unique index rollouts_by_id on rollouts (namespace, id);
    create unique index rollouts_by_number on rollouts (group_key, number);
    create index rollouts_by_place on rollouts (run, stage, group_number, number);
    create index rollouts_by_mark on rollouts (run, mark);
    create index rollouts_queue on rollouts (stage, priority desc, key) where status = 'PENDING';
    create index rollouts_queue_by_task on rollouts (stage, task, priority desc, key) where status = 'PENDING' and task is not null;
    create index rollouts_leased on rollouts (lease_end_time) where status in ('INITIALIZING', 'RUNNING');
    create index rollouts_live on rollouts (run, stage) where status in ('INITIALIZING', 'RUNNING');

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
      primary key (rollout, number)
    );

    create table validations (
      rollout bigint not null,
      validator bigint not null,
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
      primary key (rollout, validator)
    );

    create table validation_overrides (
      rollout bigint not null,
      ordinal bigint not null,
      namespace text not null,
      success boolean,
      reason text not null,
      actor text not null,
      override_time timestamptz not null,
      primary key (rollout, ordinal)
    );

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

    create table rollout_environments (
      rollout bigint not null,
      environment bigint not null,
      namespace text not null,
      primary key (rollout, environment)
    );
    create index rollout_environments_by_environment on rollout_environments (environment);

    create index stages_open on stages (namespace, run) where status in ('PENDING', 'INITIALIZING', 'RUNNING', 'PAUSED');

    alter table requests add column claims text;
  `,
  sqlite: `
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
      labels text not null,
      input_json text not null,
      priority integer not null,
      max_turns integer,
      max_attempts integer not null,
      start_trajectory text,
      start_step integer,
      model_uri text not null,
      status text not null,
      status_message text not null,
      phase text not null,
      attempt integer not null,
      tree integer,
      trajectory integer,
      worker_id text not null,
      lease_ms integer not null,
      lease_end_time text,
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
      metadata_json text not null,
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
    create index rollouts_queue on rollouts (stage, priority desc, key) where status = 'PENDING';
    create index rollouts_queue_by_task on rollouts (stage, task, priority desc, key) where status = 'PENDING' and task is not null;
    create index rollouts_leased on rollouts (lease_end_time) where status in ('INITIALIZING', 'RUNNING');
    create index rollouts_live on rollouts (run, stage) where status in ('INITIALIZING', 'RUNNING');

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
      primary key (rollout, number)
    ) without rowid;

    create table validations (
      rollout integer not null,
      validator integer not null,
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
      primary key (rollout, validator)
    ) without rowid;

    create table validation_overrides (
      rollout integer not null,
      ordinal integer not null,
      namespace text not null,
      success integer,
      reason text not null,
      actor text not null,
      override_time text not null,
      primary key (rollout, ordinal)
    ) without rowid;

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

    create table rollout_environments (
      rollout integer not null,
      environment integer not null,
      namespace text not null,
      primary key (rollout, environment)
    ) without rowid;
    create index rollout_environments_by_environment on rollout_environments (environment);

    create index stages_open on stages (namespace, run) where status in ('PENDING', 'INITIALIZING', 'RUNNING', 'PAUSED');

    alter table requests add column claims text;
  `,
};
