import type { MigrationText } from './migration.ts';

/** Stages store when their queue was closed. For terminal stages, that is their end. */
export const migration0013: MigrationText = {
  name: '0013_queue_close_time',
  postgres: `
    alter table stages add column queue_close_time timestamptz;
    update stages set queue_close_time = coalesce(end_time, update_time) where status in ('COMPLETED', 'FAILED', 'CANCELLED');
  `,
  sqlite: `
    alter table stages add column queue_close_time text;
    update stages set queue_close_time = coalesce(end_time, update_time) where status in ('COMPLETED', 'FAILED', 'CANCELLED');
  `,
};
