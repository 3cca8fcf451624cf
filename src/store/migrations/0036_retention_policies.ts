import type { MigrationText } from './migration.ts';

/** Policies that servers apply regularly. */
export const migration0036: MigrationText = {
  name: '0036_retention_policies',
  postgres: `
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
    create index retention_policies_due on retention_policies (due_time);
    create index retention_policies_by_run on retention_policies (run) where run is not null;
    create index retention_policies_by_experiment on retention_policies (experiment) where experiment is not null;
  `,
  sqlite: `
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
  `,
};
