import type { MigrationText } from './migration.ts';

/** An index by which the ids of deleted trajectories expire. */
export const migration0033: MigrationText = {
  name: '0033_expiring_ids',
  postgres: 'create index deleted_trajectories_by_time on deleted_trajectories (delete_time);',
  sqlite: 'create index deleted_trajectories_by_time on deleted_trajectories (delete_time);',
};
