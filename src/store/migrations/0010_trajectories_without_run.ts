import type { MigrationText } from './migration.ts';

/** Adds an index of trajectories without a run, so that listing them does not read those of rollouts. */
export const migration0010: MigrationText = {
  name: '0010_trajectories_without_run',
  postgres: 'create index trajectories_without_run on trajectories (namespace, key) where run is null',
  sqlite: 'create index trajectories_without_run on trajectories (namespace, key) where run is null',
};
