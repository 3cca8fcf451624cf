import type { MigrationText } from './migration.ts';

/** Cancellations of the rollouts of whole runs and stages, so that another server can continue them. */
export const migration0014: MigrationText = {
  name: '0014_rollout_lists',
  postgres: `
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
  `,
  sqlite: `
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
  `,
};
