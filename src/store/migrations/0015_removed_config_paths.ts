import type { MigrationText } from './migration.ts';

/**
 * Adds the paths that a run removes from its inherited config. Existing runs removed none, and their effective configs
 * do not change.
 */
export const migration0015: MigrationText = {
  name: '0015_removed_config_paths',
  postgres: "alter table runs add column removed_config_paths text not null default '[]'",
  sqlite: "alter table runs add column removed_config_paths text not null default '[]'",
};
