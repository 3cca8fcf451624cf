import type { MigrationText } from './migration.ts';

/**
 * Adds marks of trajectories that are deleted in several transactions.
 * - `purging`: the trajectory is deleted and its rows are being removed. Such a row is also `hidden`.
 * - `trimming`: the trajectory is hidden but kept for its branches, and its steps after the last branch point are being
 *   removed.
 * Trajectories that were deleted with their run or experiment before this migration are marked.
 */
export const migration0007: MigrationText = {
  name: '0007_purging',
  postgres: `
    alter table trajectories add column purging boolean not null default false;
    alter table trajectories add column trimming boolean not null default false;
    create index trajectories_purging on trajectories (tree, key) where purging;
    create index trajectories_trimming on trajectories (tree, key) where trimming;
    update trajectories as t set purging = true from runs as r where r.hidden and t.run = r.key;
    update trajectories as t set purging = true from experiments as e where e.hidden and t.experiment = e.key and not t.purging;
  `,
  // The statistics tell the planner that few rows are marked (see migration 0004).
  sqlite: `
    alter table trajectories add column purging integer not null default 0;
    alter table trajectories add column trimming integer not null default 0;
    create index trajectories_purging on trajectories (tree, key) where purging;
    create index trajectories_trimming on trajectories (tree, key) where trimming;
    update trajectories set purging = 1 where run in (select key from runs where hidden);
    update trajectories set purging = 1 where experiment in (select key from experiments where hidden) and not purging;

    insert into sqlite_stat1 (tbl, idx, stat)
      with told (tbl, idx, stat) as (values
        ('trajectories', 'trajectories_purging', '4 4 1'),
        ('trajectories', 'trajectories_trimming', '4 4 1'))
      select tbl, idx, stat from told where not exists (select 1 from sqlite_stat1 as s where s.tbl = told.tbl and s.idx = told.idx);

    analyze sqlite_schema;
  `,
};
