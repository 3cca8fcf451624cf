import type { MigrationText } from './migration.ts';

/**
 * Each attempt stores its own data: verdict, metrics, timings, reward and turns in its row, and validations, overrides
 * and environments under its number.
 * - Existing data of a rollout moves to its latest attempt. Queue and start times come from the status history.
 * - A PENDING rollout shows none of these values.
 * - Overrides and validations of rollouts without an attempt keep the number 0, and no longer count.
 */
export const migration0011: MigrationText = {
  name: '0011_attempts',
  postgres: `
    alter table attempts
      add column metrics text not null default '{}',
      add column timings text not null default '{}',
      add column result_success boolean,
      add column validation_passed boolean,
      add column override boolean,
      add column success boolean,
      add column reward double precision,
      add column turns bigint not null default 0,
      add column claimable_time timestamptz,
      add column start_time timestamptz,
      add column end_digest text not null default '';
    alter table rollouts add column claimable_time timestamptz, add column first_given text not null default '';

    alter table validation_overrides add column attempt bigint not null default 0;
    update validation_overrides as o set attempt = r.attempt from rollouts as r where r.key = o.rollout;

    alter table rollout_environments add column attempt bigint not null default 0;
    update rollout_environments as e set attempt = r.attempt from rollouts as r where r.key = e.rollout;
    alter table rollout_environments drop constraint rollout_environments_pkey;
    alter table rollout_environments add primary key (rollout, attempt, environment);

    delete from validations as v using validations as newer, rollouts as r
      where r.key = v.rollout and r.attempt > 0 and v.attempt = r.attempt
        and newer.rollout = v.rollout and newer.attempt = 0 and newer.validator = v.validator;
    update validations as v set attempt = r.attempt from rollouts as r where r.key = v.rollout and v.attempt = 0 and r.attempt > 0;

    update attempts as a set metrics = r.metrics, timings = r.timings, override = r.override,
      result = case when r.result = '' then a.result else r.result end,
      summary_json = case when r.result = '' then a.summary_json else r.summary_json end
      from rollouts as r where r.key = a.rollout and r.attempt = a.number;
    update attempts as a set result_success = (nullif(a.result, '')::json ->> 'success')::boolean,
      validation_passed = (select bool_and(v.success) from validations as v
        where v.rollout = a.rollout and v.attempt = a.number and not v.advisory);
    update attempts as a set
      turns = coalesce((select greatest(t.next_step_number - coalesce(t.branch_point, 0) - 1, 0) from trajectories as t
        where t.tree = a.tree and t.key = a.trajectory), 0),
      reward = coalesce((nullif(a.result, '')::json ->> 'reward')::double precision, (select
        case when exists (select 1 from steps as w where w.tree = t.tree and w.trajectory = t.key and w.reward <> 'NaN') then t.reward_sum
          - coalesce((select p.reward_sum from steps as p
            where p.tree = t.tree and p.trajectory = t.parent and p.step_number = t.branch_point), 0) end
        from trajectories as t where t.tree = a.tree and t.key = a.trajectory))
      where a.end_time is not null;
    update attempts as a set reward = r.reward, turns = r.turns from rollouts as r
      where r.key = a.rollout and r.attempt = a.number and r.status in ('COMPLETED', 'FAILED', 'CANCELLED');
    update attempts set success = coalesce(override, validation_passed, result_success);

    update rollouts as r set result = a.result, summary_json = a.summary_json, result_success = a.result_success,
      validation_passed = a.validation_passed, success = case when r.status = 'FAILED' then false else a.success end
      from attempts as a where a.rollout = r.key and a.number = r.attempt and r.status <> 'PENDING';
    update rollouts set result = '', summary_json = '', result_success = null, validation_passed = null, override = null, success = case when status = 'FAILED' then false end,
      reward = null, turns = 0, metrics = '{}', timings = '{}'
      where status = 'PENDING' or attempt = 0;

    update attempts as a set
      claimable_time = (select max(c.change_time) from status_changes as c
        where c.tree = r.run and c.entity_kind = 'ROLLOUT' and c.entity = r.key and c.new_status = 'PENDING' and c.change_time <= a.claim_time),
      start_time = (select min(c.change_time) from status_changes as c
        where c.tree = r.run and c.entity_kind = 'ROLLOUT' and c.entity = r.key and c.new_status = 'RUNNING' and c.change_time >= a.claim_time
          and (a.end_time is null or c.change_time <= a.end_time))
      from rollouts as r where r.key = a.rollout;
    update rollouts as r set
      claimable_time = (select max(c.change_time) from status_changes as c
        where c.tree = r.run and c.entity_kind = 'ROLLOUT' and c.entity = r.key and c.new_status = 'PENDING'),
      start_time = case when r.status <> 'PENDING' then
        (select a.start_time from attempts as a where a.rollout = r.key and a.number = r.attempt) end;
  `,
  sqlite: `
    alter table attempts add column metrics text not null default '{}';
    alter table attempts add column timings text not null default '{}';
    alter table attempts add column result_success integer;
    alter table attempts add column validation_passed integer;
    alter table attempts add column override integer;
    alter table attempts add column success integer;
    alter table attempts add column reward;
    alter table attempts add column turns integer not null default 0;
    alter table attempts add column claimable_time text;
    alter table attempts add column start_time text;
    alter table attempts add column end_digest text not null default '';
    alter table rollouts add column claimable_time text;
    alter table rollouts add column first_given text not null default '';

    alter table validation_overrides add column attempt integer not null default 0;
    update validation_overrides set attempt = r.attempt from rollouts as r where r.key = validation_overrides.rollout;

    create table environments_by_attempt (
      rollout integer not null,
      attempt integer not null,
      environment integer not null,
      namespace text not null,
      primary key (rollout, attempt, environment)
    ) without rowid;
    insert into environments_by_attempt
      select e.rollout, r.attempt, e.environment, e.namespace from rollout_environments as e join rollouts as r on r.key = e.rollout;
    drop table rollout_environments;
    alter table environments_by_attempt rename to rollout_environments;
    create index rollout_environments_by_environment on rollout_environments (environment);

    delete from validations where attempt > 0
      and attempt = (select r.attempt from rollouts as r where r.key = validations.rollout)
      and exists (select 1 from validations as newer
        where newer.rollout = validations.rollout and newer.attempt = 0 and newer.validator = validations.validator);
    update validations set attempt = r.attempt from rollouts as r where r.key = validations.rollout and validations.attempt = 0 and r.attempt > 0;

    update attempts set metrics = r.metrics, timings = r.timings, override = r.override,
      result = case when r.result = '' then attempts.result else r.result end,
      summary_json = case when r.result = '' then attempts.summary_json else r.summary_json end
      from rollouts as r where r.key = attempts.rollout and r.attempt = attempts.number;
    update attempts set result_success = json_extract(nullif(result, ''), '$.success'),
      validation_passed = (select min(v.success) from validations as v
        where v.rollout = attempts.rollout and v.attempt = attempts.number and not v.advisory);
    update attempts set
      turns = coalesce((select max(t.next_step_number - coalesce(t.branch_point, 0) - 1, 0) from trajectories as t
        where t.tree = attempts.tree and t.key = attempts.trajectory), 0),
      reward = coalesce(
        case json_extract(nullif(result, ''), '$.reward')
          when 'Infinity' then 9e999 when '-Infinity' then -9e999 when '-0' then -0.0
          else json_extract(nullif(result, ''), '$.reward') end,
        (select case when not exists (select 1 from steps as w where w.tree = t.tree and w.trajectory = t.key and w.reward <> 'NaN') then null
            when t.reward_sum = 'NaN' then 'NaN'
            else t.reward_sum - coalesce((select p.reward_sum from steps as p
              where p.tree = t.tree and p.trajectory = t.parent and p.step_number = t.branch_point), 0) end
          from trajectories as t where t.tree = attempts.tree and t.key = attempts.trajectory))
      where end_time is not null;
    update attempts set reward = r.reward, turns = r.turns from rollouts as r
      where r.key = attempts.rollout and r.attempt = attempts.number and r.status in ('COMPLETED', 'FAILED', 'CANCELLED');
    update attempts set success = coalesce(override, validation_passed, result_success);

    update rollouts set result = a.result, summary_json = a.summary_json, result_success = a.result_success,
      validation_passed = a.validation_passed, success = case when rollouts.status = 'FAILED' then 0 else a.success end
      from attempts as a where a.rollout = rollouts.key and a.number = rollouts.attempt and rollouts.status <> 'PENDING';
    update rollouts set result = '', summary_json = '', result_success = null, validation_passed = null, override = null, success = case when status = 'FAILED' then 0 end,
      reward = null, turns = 0, metrics = '{}', timings = '{}'
      where status = 'PENDING' or attempt = 0;

    update attempts set
      claimable_time = (select max(c.change_time) from status_changes as c where c.tree = r.run and c.entity_kind = 'ROLLOUT'
        and c.entity = r.key and c.new_status = 'PENDING' and c.change_time <= attempts.claim_time),
      start_time = (select min(c.change_time) from status_changes as c where c.tree = r.run and c.entity_kind = 'ROLLOUT'
        and c.entity = r.key and c.new_status = 'RUNNING' and c.change_time >= attempts.claim_time
        and (attempts.end_time is null or c.change_time <= attempts.end_time))
      from rollouts as r where r.key = attempts.rollout;
    update rollouts set
      claimable_time = (select max(c.change_time) from status_changes as c where c.tree = rollouts.run and c.entity_kind = 'ROLLOUT'
        and c.entity = rollouts.key and c.new_status = 'PENDING'),
      start_time = case when status <> 'PENDING' then
        (select a.start_time from attempts as a where a.rollout = rollouts.key and a.number = rollouts.attempt) end;
  `,
};
