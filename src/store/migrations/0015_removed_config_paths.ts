import type { MigrationText } from './migration.ts';

/** The paths that a run removed from the config that it started from. Runs that exist removed none; their effective configs do not change. */
export const migration0015: MigrationText = {
  name: '0015_removed_config_paths',
  postgres: "alter table runs add column removed_config_paths text not null default '[]'",
  sqlite: "alter table runs add column removed_config_paths text not null default '[]'",
};
