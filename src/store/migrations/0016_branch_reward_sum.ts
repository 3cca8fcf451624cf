import type { MigrationText } from './migration.ts';

/**
 * Stores the sum of each trajectory's own rewards, added in the order of steps, so that it equals the sum that appends
 * compute. A difference of running sums would not: after a prefix of 1e16 it loses small rewards, and after an infinite
 * one it is NaN. For a root, the running sum is already this number.
 * Postgres fails if finite numbers overflow a double, whereas appends then store an infinity. Deleted trajectories have
 * no sum.
 */
export const migration0016: MigrationText = {
  name: '0016_branch_reward_sum',
  postgres: `
    alter table trajectories add column branch_reward_sum double precision;
    update trajectories as t set branch_reward_sum = t.reward_sum
      where t.parent is null and not t.hidden
        and (select 1 from steps as s where s.tree = t.tree and s.trajectory = t.key and s.reward <> 'NaN' limit 1) is not null;
    update trajectories as t set branch_reward_sum = (
      with recursive own (step_number, total) as (
        select t.branch_point, null::double precision
        union all
        select own.step_number + 1, case
          when s.reward is null or s.reward = 'NaN' then own.total
          when own.total is null then 0 + s.reward
          when abs(own.total) < 'Infinity' and abs(s.reward) < 'Infinity' and sign(own.total) = sign(s.reward)
            and abs(own.total) > 1.7976931348623157e308 - abs(s.reward) then sign(own.total) * 'Infinity'::double precision
          else own.total + s.reward end
        from own cross join lateral (select p.reward from steps as p
          where p.tree = t.tree and p.trajectory = t.key and p.step_number = own.step_number + 1 offset 0) as s
      )
      select total from own order by step_number desc limit 1)
      where t.parent is not null and not t.hidden;
  `,
  sqlite: `
    alter table trajectories add column branch_reward_sum;
    update trajectories set branch_reward_sum = reward_sum
      where parent is null and not hidden
        and exists (select 1 from steps as s where s.tree = trajectories.tree and s.trajectory = trajectories.key and s.reward <> 'NaN');
    update trajectories set branch_reward_sum = (
      with recursive own (step_number, total) as (
        select trajectories.branch_point, null
        union all
        select own.step_number + 1, case
          when s.reward is null or s.reward = 'NaN' then own.total
          when own.total = 'NaN' then 'NaN'
          else coalesce(coalesce(own.total, 0.0) + s.reward, 'NaN') end
        from own cross join steps as s on s.tree = trajectories.tree and s.trajectory = trajectories.key and s.step_number = own.step_number + 1
      )
      select total from own order by step_number desc limit 1)
      where parent is not null and not hidden;
  `,
};
