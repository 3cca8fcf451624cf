import type { MigrationText } from './migration.ts';

/**
 * SQLite plans without looking at the data, and assumes that ten rows share a namespace. To find the rows of a few runs
 * of a namespace, it would read the whole namespace. These statistics describe a large store: nearly all rows are in
 * one namespace, and few are hidden or open. Results of an operator's `ANALYZE`, earlier or later, take precedence.
 */
export const migration0004: MigrationText = {
  name: '0004_statistics',
  postgres: '',
  // Analysing a tiny table creates the table of statistics. The last line makes the connection read it.
  sqlite: `
    analyze kysely_migration_lock;

    insert into sqlite_stat1 (tbl, idx, stat)
      with told (tbl, idx, stat) as (values
        ('trajectories', 'trajectories_by_id', '1048576 1048576 1'),
        ('trajectories', 'trajectories_by_key', '1048576 1048576 1'),
        ('trajectories', 'trajectories_by_task', '1048576 1048576 100 1'),
        ('states', 'sqlite_autoindex_states_1', '1048576 1048576 1'),
        ('requests', 'sqlite_autoindex_requests_1', '1048576 1048576 1048576 1'),
        ('experiments', 'experiments_by_id', '1048576 1048576 1'),
        ('experiments', 'experiments_by_key', '1048576 1048576 1'),
        ('experiments', 'experiments_by_name', '1048576 1048576 1'),
        ('experiments', 'experiments_hidden', '4 1'),
        ('runs', 'runs_by_id', '1048576 1048576 1'),
        ('runs', 'runs_by_key', '1048576 1048576 1'),
        ('runs', 'runs_hidden', '4 1'),
        ('stages', 'stages_by_id', '1048576 1048576 1'),
        ('stages', 'stages_open', '1024 1024 8'),
        ('tasks', 'tasks_by_id', '1048576 1048576 1'),
        ('tasks', 'tasks_by_key', '1048576 1048576 1'),
        ('validators', 'validators_by_id', '1048576 1048576 1'),
        ('groups', 'groups_by_id', '1048576 1048576 1'),
        ('rollouts', 'rollouts_by_id', '1048576 1048576 1'),
        ('environments', 'environments_by_id', '1048576 1048576 1'))
      select tbl, idx, stat from told where not exists (select 1 from sqlite_stat1 as s where s.tbl = told.tbl and s.idx = told.idx);

    analyze sqlite_schema;
  `,
};
