import type { MigrationText } from './migration.ts';

/**
 * Indexes in whose order WatchRun reads the rows of a run, page by page: groups by key, and changes by mark, then key. On SQLite the keys of rows end every
 * index anyway. Rollouts that did not change are read by their place.
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
