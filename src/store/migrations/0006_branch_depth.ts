import type { MigrationText } from './migration.ts';

/**
 * Adds the depth of trajectories: 0 for a root, one more than its parent's for a branch. Existing trees are walked from
 * their roots with one index search per branch, so that the time is proportional to the number of branches. By default,
 * Postgres would read the whole table for each level.
 */
export const migration0006: MigrationText = {
  name: '0006_branch_depth',
  postgres: `
    alter table trajectories add column depth bigint not null default 0;

    set local enable_hashjoin = off;
    set local enable_mergejoin = off;
    set local enable_seqscan = off;
    with recursive branches (tree, key, depth) as (
      select tree, key, 0::bigint from trajectories where parent is null
      union all
      select t.tree, t.key, b.depth + 1 from branches as b join trajectories as t on t.tree = b.tree and t.parent = b.key)
    update trajectories as t set depth = b.depth from branches as b where t.tree = b.tree and t.key = b.key and b.depth > 0;
    set local enable_hashjoin to default;
    set local enable_mergejoin to default;
    set local enable_seqscan to default;
  `,
  sqlite: `
    alter table trajectories add column depth integer not null default 0;

    with recursive branches (tree, key, depth) as (
      select tree, key, 0 from trajectories where parent is null
      union all
      select t.tree, t.key, b.depth + 1 from branches as b cross join trajectories as t on t.tree = b.tree and t.parent = b.key)
    update trajectories set depth = found.depth from (select key, depth from branches where depth > 0) as found where trajectories.key = found.key;
  `,
};
