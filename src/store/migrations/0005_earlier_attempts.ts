import type { MigrationText } from './migration.ts';

/**
 * Results and validations of an attempt are kept when the rollout is retried: the result in the attempt's row,
 * validations under its number.
 */
export const migration0005: MigrationText = {
  name: '0005_earlier_attempts',
  postgres: `
    alter table attempts add column result text not null default '', add column summary_json text not null default '';

    alter table validations add column attempt bigint not null default 0;
    alter table validations drop constraint validations_pkey;
    alter table validations add primary key (rollout, attempt, validator);
  `,
  sqlite: `
    alter table attempts add column result text not null default '';
    alter table attempts add column summary_json text not null default '';

    create table validations_by_attempt (
      rollout integer not null,
      attempt integer not null default 0,
      validator integer not null,
      namespace text not null,
      advisory integer not null,
      success integer not null,
      query text not null,
      expected_result text not null,
      actual_result text not null,
      execution_ms integer,
      error_message text not null,
      details_json text not null,
      record_time text not null,
      primary key (rollout, attempt, validator)
    ) without rowid;
    insert into validations_by_attempt
      select rollout, 0, validator, namespace, advisory, success, query, expected_result, actual_result, execution_ms, error_message, details_json, record_time
      from validations;
    drop table validations;
    alter table validations_by_attempt rename to validations;
  `,
};
