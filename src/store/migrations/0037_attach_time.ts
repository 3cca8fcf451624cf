import type { MigrationText } from './migration.ts';

/** The times at which states were attached. They are unknown for states that earlier versions attached. */
export const migration0037: MigrationText = {
  name: '0037_attach_time',
  postgres: 'alter table attached_states add column attach_time timestamptz;',
  sqlite: 'alter table attached_states add column attach_time text;',
};
