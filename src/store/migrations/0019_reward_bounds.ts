import type { MigrationText } from './migration.ts';

/** SQL of a reward of `segments.rewards` as a number on SQLite. NaN is left out. */
const REWARD = `case r.type when 'text' then case r.value when 'Infinity' then 9e999 when '-Infinity' then -9e999 end
          else cast(r.value as real) end`;

const OF_TRAJECTORIES = `
    update trajectories set (min_reward, max_reward) = (
      select min(s.min_reward), max(s.max_reward) from segments as s
      where s.tree = trajectories.tree and s.trajectory = trajectories.key)
    where exists (select 1 from segments as s where s.tree = trajectories.tree and s.trajectory = trajectories.key);
    create index segments_by_reward on segments (tree, trajectory, max_reward, first_step_number, min_reward)
      where max_reward is not null;
`;

/**
 * Stores the smallest and the largest reward of each stored segment and of each trajectory, so that the best steps are
 * found without reading the others. On SQLite, columns after `body` would be read through all pages of the body, so the
 * table is written again.
 */
export const migration0019: MigrationText = {
  name: '0019_reward_bounds',
  postgres: `
    alter table segments add column min_reward double precision;
    alter table segments add column max_reward double precision;
    alter table trajectories add column min_reward double precision;
    alter table trajectories add column max_reward double precision;
    update segments set (min_reward, max_reward) = (
      select min(s.reward), max(s.reward) from steps as s
      where s.tree = segments.tree and s.trajectory = segments.trajectory
        and s.first_step_number = segments.first_step_number and s.reward <> 'NaN');
    ${OF_TRAJECTORIES}`,
  sqlite: `
    drop view steps;
    drop index segments_by_trajectory;
    alter table segments rename to former_segments;
    create table segments (
      tree integer not null,
      trajectory integer not null,
      first_step_number integer not null,
      next_step_number integer not null,
      namespace text not null,
      writer_epoch integer not null,
      commit_time text not null,
      reward_sum not null,
      byte_sum integer not null,
      rewards text not null,
      min_reward,
      max_reward,
      ends text not null,
      metric_sums text not null,
      checksum integer not null,
      body blob not null
    );
    insert into segments
      select tree, trajectory, first_step_number, next_step_number, namespace, writer_epoch, commit_time, reward_sum, byte_sum, rewards,
        (select min(${REWARD}) from json_each(f.rewards) as r),
        (select max(${REWARD}) from json_each(f.rewards) as r),
        ends, metric_sums, checksum, body
      from former_segments as f;
    drop table former_segments;
    create unique index segments_by_trajectory on segments (tree, trajectory, first_step_number);
    create view steps as
      select s.tree, s.trajectory, s.first_step_number + r.key as step_number, s.namespace,
        case r.type when 'text' then case r.value when 'Infinity' then 9e999 when '-Infinity' then -9e999 else r.value end
          when 'null' then null else cast(r.value as real) end as reward,
        coalesce((s.ends ->> cast(r.key as text)) & 1, 0) as terminated,
        coalesce(((s.ends ->> cast(r.key as text)) >> 1) & 1, 0) as truncated,
        s.commit_time, s.first_step_number, s.next_step_number
      from segments as s cross join json_each(s.rewards) as r;
    alter table trajectories add column min_reward;
    alter table trajectories add column max_reward;
    ${OF_TRAJECTORIES}`,
};
