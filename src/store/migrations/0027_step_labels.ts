import type { MigrationText } from './migration.ts';

/**
 * Labels of steps, for lists. On SQLite the table is copied, because columns after `body` are read through it.
 */
export const migration0027: MigrationText = {
  name: '0027_step_labels',
  postgres: `
    alter table segments add column labels text not null default '[]';
    alter table segments alter column labels drop default;
  `,
  sqlite: `
    drop view steps;
    create table labelled_segments (
      tree integer not null,
      trajectory integer not null,
      first_step_number integer not null,
      next_step_number integer not null,
      namespace text not null,
      writer_epoch integer not null,
      commit_time text not null,
      commits text,
      last_commit_time text,
      reward_sum not null,
      byte_sum integer not null,
      rewards text not null,
      min_reward,
      max_reward,
      ends text not null,
      metric_sums text not null,
      state_names text not null,
      labels text not null,
      checksum integer not null,
      encoding integer not null default 1,
      body_bytes integer,
      states_bytes integer,
      body blob not null,
      states blob not null
    );
    insert into labelled_segments
      select tree, trajectory, first_step_number, next_step_number, namespace, writer_epoch, commit_time, commits, last_commit_time,
        reward_sum, byte_sum, rewards, min_reward, max_reward, ends, metric_sums, state_names, '[]', checksum, encoding, body_bytes,
        states_bytes, body, states
      from segments order by tree, trajectory, first_step_number;
    drop table segments;
    alter table labelled_segments rename to segments;
    create unique index segments_by_trajectory on segments (tree, trajectory, first_step_number);
    create index segments_with_states on segments (tree, trajectory, first_step_number) where state_names <> '[]';
    create index segments_by_reward on segments (tree, trajectory, max_reward, first_step_number, min_reward)
      where max_reward is not null;
    create view steps as
      select s.tree, s.trajectory, s.first_step_number + r.key as step_number, s.namespace,
        case r.type when 'text' then case r.value when 'Infinity' then 9e999 when '-Infinity' then -9e999 else r.value end
          when 'null' then null else cast(r.value as real) end as reward,
        coalesce((s.ends ->> cast(r.key as text)) & 1, 0) as terminated,
        coalesce(((s.ends ->> cast(r.key as text)) >> 1) & 1, 0) as truncated,
        case when s.commits is null then s.commit_time else (
          select c.value ->> 2 from json_each(s.commits) as c where c.value ->> 0 <= r.key order by c.key desc limit 1) end as commit_time,
        s.first_step_number, s.next_step_number
      from segments as s cross join json_each(s.rewards) as r;
  `,
};
