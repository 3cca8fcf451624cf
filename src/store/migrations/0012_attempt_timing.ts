import type { MigrationText } from './migration.ts';

/**
 * Rollouts have attempt timeouts, retry delays and refunded attempts. Runs store their pauses, during which leases do
 * not run. A PENDING rollout can be claimed from `claimable_time` on, so every rollout has one. It is part of the
 * indexes of the queue, so that delayed rollouts cost little.
 */
export const migration0012: MigrationText = {
  name: '0012_attempt_timing',
  postgres: `
    alter table runs add column pauses text not null default '';
    update runs as u set pauses = coalesce((select '[["' || to_char(max(c.change_time) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') || '"]]'
      from status_changes as c where c.tree = u.key and c.entity_kind = 'RUN' and c.entity = u.key and c.new_status = 'PAUSED'), '')
      where u.status = 'PAUSED';

    alter table rollouts add column attempt_timeout_ms bigint, add column retry_delay_ms bigint not null default 1000,
      add column refunded_attempts bigint not null default 0, add column attempt_end_time timestamptz, add column paused_us bigint not null default 0;
    update rollouts set claimable_time = create_time where claimable_time is null;
    drop index rollouts_queue;
    drop index rollouts_queue_by_task;
    create index rollouts_queue on rollouts (stage, priority desc, key, claimable_time) where status = 'PENDING';
    create index rollouts_queue_by_task on rollouts (stage, task, priority desc, key, claimable_time) where status = 'PENDING' and task is not null;
  `,
  sqlite: `
    alter table runs add column pauses text not null default '';
    update runs set pauses = coalesce((select '[["' || max(c.change_time) || '"]]'
      from status_changes as c where c.tree = runs.key and c.entity_kind = 'RUN' and c.entity = runs.key and c.new_status = 'PAUSED'), '')
      where status = 'PAUSED';

    alter table rollouts add column attempt_timeout_ms integer;
    alter table rollouts add column retry_delay_ms integer not null default 1000;
    alter table rollouts add column refunded_attempts integer not null default 0;
    alter table rollouts add column attempt_end_time text;
    alter table rollouts add column paused_us integer not null default 0;
    update rollouts set claimable_time = create_time where claimable_time is null;
    drop index rollouts_queue;
    drop index rollouts_queue_by_task;
    create index rollouts_queue on rollouts (stage, priority desc, key, claimable_time) where status = 'PENDING';
    create index rollouts_queue_by_task on rollouts (stage, task, priority desc, key, claimable_time) where status = 'PENDING' and task is not null;
  `,
};
