import type { MigrationText } from './migration.ts';

/**
 * Adds indexes in the order in which WatchRun reads the rows of a run: groups by key, and changes by mark and key. In
 * SQLite every index ends with the row key already. A snapshot reads rollouts by stage, group and number.
 */
export const migration0008: MigrationText = {
  name: '0008_watched_changes',
  postgres: `
    create index groups_by_run on groups (run, key);
    drop index groups_by_mark;
    create index groups_by_mark on groups (run, mark, key);
    drop index rollouts_by_mark;
    create index rollouts_by_mark on rollouts (run, mark, key);
  `,
  sqlite: `
    create index groups_by_run on groups (run, key);
  `,
};
