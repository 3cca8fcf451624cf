import type { MigrationText } from './migration.ts';

/**
 * Groups count the terminal rollouts that had an attempt. A stage that ended FAILED or CANCELLED stores its expected
 * work. For stages that ended earlier this is unknown, so they count as complete, as before. A FAILED rollout is never
 * a success.
 */
export const migration0009: MigrationText = {
  name: '0009_right_answers',
  postgres: `
    alter table groups add column tried_rollouts bigint not null default 0;
    update groups as g set tried_rollouts = found.tried
    from (
      select group_key, count(*) as tried from rollouts
      where status in ('COMPLETED', 'FAILED', 'CANCELLED') and attempt > 0 group by group_key
    ) as found where g.key = found.group_key;

    alter table stages add column end_expected_turns double precision,
      add column end_expected_substeps double precision, add column end_share double precision;
    update stages as s set end_expected_substeps = s.completed_substeps, end_share = 1,
      end_expected_turns = coalesce((select sum(g.terminal_turns) from groups as g where g.stage = s.key), 0)
    where s.status in ('FAILED', 'CANCELLED');

    update rollouts set success = false where status = 'FAILED' and success is distinct from false;
  `,
  sqlite: `
    alter table groups add column tried_rollouts integer not null default 0;
    update groups set tried_rollouts = found.tried
    from (
      select group_key, count(*) as tried from rollouts
      where status in ('COMPLETED', 'FAILED', 'CANCELLED') and attempt > 0 group by group_key
    ) as found where groups.key = found.group_key;

    alter table stages add column end_expected_turns real;
    alter table stages add column end_expected_substeps real;
    alter table stages add column end_share real;
    update stages set end_expected_substeps = completed_substeps, end_share = 1,
      end_expected_turns = coalesce((select sum(g.terminal_turns) from groups as g where g.stage = stages.key), 0)
    where status in ('FAILED', 'CANCELLED');

    update rollouts set success = 0 where status = 'FAILED' and success is not 0;
  `,
};
