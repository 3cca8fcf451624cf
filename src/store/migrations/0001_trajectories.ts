import type { MigrationText } from './migration.ts';

/**
 * Trajectories, steps, states and tags.
 * - Every hot key begins with `tree`, the row key of a tree's root, so that the rows of a tree are stored together and
 *   can be distributed by it.
 * - Row keys rise and are never reused.
 * - `reward_sum` and `byte_sum` are running sums along the lineage. The appending transaction updates them, so that a
 *   branch or a total reads one row.
 * - Rewards have no declared type in SQLite, because `real` would drop the sign of negative zero.
 */
export const migration0001: MigrationText = {
  name: '0001_trajectories',
  postgres: `
    create sequence trajectory_keys;
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
      next_step_number bigint not null,
      reward_sum double precision not null,
      byte_sum bigint not null,
      hidden boolean not null,
      create_time timestamptz not null,
      update_time timestamptz not null,
      seal_time timestamptz,
      primary key (tree, key)
    ) with (fillfactor = 50);
    create unique index trajectories_by_id on trajectories (namespace, id);
    create index trajectories_by_key on trajectories (namespace, key);
    create index trajectories_by_task on trajectories (namespace, task_id, key);
    create index trajectories_by_parent on trajectories (tree, parent, branch_point);

    create table steps (
      tree bigint not null,
      trajectory bigint not null,
      step_number bigint not null,
      namespace text not null,
      reward double precision,
      terminated boolean not null,
      truncated boolean not null,
      writer_epoch bigint not null,
      reward_sum double precision not null,
      byte_sum bigint not null,
      commit_time timestamptz not null,
      start_time text,
      end_time text,
      content_digest bytea not null,
      metrics text not null,
      actions text not null,
      observations text not null,
      info_json text not null,
      metadata_json text not null,
      primary key (tree, trajectory, step_number)
    );

    create table step_states (
      tree bigint not null,
      trajectory bigint not null,
      step_number bigint not null,
      name text not null,
      namespace text not null,
      digest bytea not null,
      media_type text not null,
      size bigint not null,
      primary key (tree, trajectory, step_number, name)
    );

    create table content_states (
      tree bigint not null,
      trajectory bigint not null,
      step_number bigint not null,
      digest bytea not null,
      namespace text not null,
      primary key (tree, trajectory, step_number, digest)
    );

    create table states (
      namespace text not null,
      digest bytea not null,
      size bigint not null,
      encoding text not null,
      data bytea,
      upload uuid,
      referenced boolean not null,
      version bigint not null,
      renew_time timestamptz not null,
      primary key (namespace, digest)
    );
    alter table states alter column data set storage external;
    create index states_unreferenced on states (renew_time) where not referenced;

    create table state_uploads (
      upload uuid primary key,
      namespace text not null,
      renew_time timestamptz not null
    );
    create table state_chunks (
      upload uuid not null,
      ordinal bigint not null,
      namespace text not null,
      digest bytea not null,
      size bigint not null,
      encoding text not null,
      data bytea not null,
      primary key (upload, ordinal)
    );
    alter table state_chunks alter column data set storage external;

    create table tags (
      tree bigint not null,
      trajectory bigint not null,
      name text collate "C" not null,
      namespace text not null,
      step_number bigint not null,
      update_time timestamptz not null,
      primary key (tree, trajectory, name)
    );

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

    create table requests (
      namespace text not null,
      rpc text not null,
      request_id text not null,
      request_digest text not null,
      tree bigint not null,
      resource bigint not null,
      resource_id uuid not null,
      create_time timestamptz not null,
      primary key (namespace, rpc, request_id)
    );
    create index requests_by_time on requests (create_time);
  `,
  sqlite: `
    create table trajectories (
      key integer primary key autoincrement,
      tree integer not null,
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
      next_step_number integer not null,
      reward_sum not null,
      byte_sum integer not null,
      hidden integer not null,
      create_time text not null,
      update_time text not null,
      seal_time text
    );
    create unique index trajectories_by_tree on trajectories (tree, key);
    create unique index trajectories_by_id on trajectories (namespace, id);
    create index trajectories_by_key on trajectories (namespace, key);
    create index trajectories_by_task on trajectories (namespace, task_id, key);
    create index trajectories_by_parent on trajectories (tree, parent, branch_point);

    create table steps (
      tree integer not null,
      trajectory integer not null,
      step_number integer not null,
      namespace text not null,
      reward,
      terminated integer not null,
      truncated integer not null,
      writer_epoch integer not null,
      reward_sum not null,
      byte_sum integer not null,
      commit_time text not null,
      start_time text,
      end_time text,
      content_digest blob not null,
      metrics text not null,
      actions text not null,
      observations text not null,
      info_json text not null,
      metadata_json text not null,
      primary key (tree, trajectory, step_number)
    );

    create table step_states (
      tree integer not null,
      trajectory integer not null,
      step_number integer not null,
      name text not null,
      namespace text not null,
      digest blob not null,
      media_type text not null,
      size integer not null,
      primary key (tree, trajectory, step_number, name)
    ) without rowid;

    create table content_states (
      tree integer not null,
      trajectory integer not null,
      step_number integer not null,
      digest blob not null,
      namespace text not null,
      primary key (tree, trajectory, step_number, digest)
    ) without rowid;

    create table states (
      namespace text not null,
      digest blob not null,
      size integer not null,
      encoding text not null,
      upload text,
      referenced integer not null,
      version integer not null,
      renew_time text not null,
      data blob,
      primary key (namespace, digest)
    );
    create index states_unreferenced on states (renew_time) where not referenced;

    create table state_uploads (
      upload text primary key,
      namespace text not null,
      renew_time text not null
    );
    create table state_chunks (
      upload text not null,
      ordinal integer not null,
      namespace text not null,
      digest blob not null,
      size integer not null,
      encoding text not null,
      data blob not null,
      primary key (upload, ordinal)
    );

    create table tags (
      tree integer not null,
      trajectory integer not null,
      name text not null,
      namespace text not null,
      step_number integer not null,
      update_time text not null,
      primary key (tree, trajectory, name)
    ) without rowid;

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

    create table requests (
      namespace text not null,
      rpc text not null,
      request_id text not null,
      request_digest text not null,
      tree integer not null,
      resource integer not null,
      resource_id text not null,
      create_time text not null,
      primary key (namespace, rpc, request_id)
    ) without rowid;
    create index requests_by_time on requests (create_time);
  `,
};
