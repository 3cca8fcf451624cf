import type { MigrationText } from './migration.ts';

/**
 * The digests of the requests that created trajectories, and the ids of deleted trajectories that were created when
 * they were opened.
 */
export const migration0025: MigrationText = {
  name: '0025_created_by_open',
  postgres: `
    alter table trajectories add column create_digest text not null default '';
    alter table trajectories add column created_by_open boolean not null default false;
    create table deleted_trajectories (
      namespace text not null,
      id uuid not null,
      delete_time timestamptz not null,
      primary key (namespace, id)
    );
  `,
  sqlite: `
    alter table trajectories add column create_digest text not null default '';
    alter table trajectories add column created_by_open integer not null default 0;
    create table deleted_trajectories (
      namespace text not null,
      id text not null,
      delete_time text not null,
      primary key (namespace, id)
    ) without rowid;
  `,
};
