import type { MigrationText } from './migration.ts';

/**
 * Adds requests to cancel the rollouts of whole runs and stages, which any server can continue. Adds indexes for lists
 * of rollouts across runs. Workers are indexed in attempts, because a rollout's row does not keep its worker.
 */
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

    create index rollouts_by_task on rollouts (task, key) where task is not null;
    create index attempts_by_worker on attempts (namespace, worker_id, rollout);
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

    create index rollouts_by_task on rollouts (task, key) where task is not null;
    create index attempts_by_worker on attempts (namespace, worker_id, rollout);
  `,
};
