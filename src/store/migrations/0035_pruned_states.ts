import type { MigrationText } from './migration.ts';

/** The times at which retention removed attached states. Steps have those of the states that came with them. */
export const migration0035: MigrationText = {
  name: '0035_pruned_states',
  postgres: 'alter table attached_states add column pruned_time timestamptz;',
  sqlite: 'alter table attached_states add column pruned_time text;',
};
