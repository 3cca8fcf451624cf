import type { MigrationText } from './migration.ts';

/**
 * Validations have a name: the type of a validator of the rollout's task, or a free name without validator. An attempt
 * has one validation per name. Stored digests of ends with validations contained ids, so they are cleared. Repeated
 * requests are then compared by message and result only.
 */
export const migration0017: MigrationText = {
  name: '0017_named_validations',
  postgres: `
    alter table validations add column name text collate "C";
    update validations as n set name = v.type from validators as v where v.key = n.validator;
    alter table validations drop constraint validations_pkey;
    alter table validations alter column validator drop not null;
    alter table validations add primary key (rollout, attempt, name);
    update attempts as a set end_digest = '' where a.end_digest <> ''
      and exists (select 1 from validations as n where n.rollout = a.rollout and n.attempt = a.number);
  `,
  sqlite: `
    create table validations_by_name (
      rollout integer not null,
      attempt integer not null default 0,
      name text not null,
      validator integer,
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
      primary key (rollout, attempt, name)
    ) without rowid;
    insert into validations_by_name
      select n.rollout, n.attempt, v.type, n.validator, n.namespace, n.advisory, n.success, n.query, n.expected_result, n.actual_result, n.execution_ms,
        n.error_message, n.details_json, n.record_time
      from validations as n left join validators as v on v.key = n.validator;
    drop table validations;
    alter table validations_by_name rename to validations;
    update attempts set end_digest = '' where end_digest <> ''
      and exists (select 1 from validations as n where n.rollout = attempts.rollout and n.attempt = attempts.number);
  `,
};
