import type { Migration } from './migration.ts';
import { moveSmallStates } from './small_states/move_small_states.ts';

/**
 * Stores small states of steps in the rows of the steps, and names of states with the segments. On SQLite the table is
 * copied, because columns after `body` are read through it.
 */
export const migration0020: Migration = {
  name: '0020_small_states',
  postgres: `
    alter table segments add column state_names text not null default '[]';
    alter table segments alter column state_names drop default;
    alter table segments add column states bytea not null default '';
    alter table segments alter column states drop default;
    alter table segments alter column states set storage external;
    alter table attached_states add column data bytea;
    create index segments_with_states on segments (tree, trajectory, first_step_number) where state_names <> '[]';
  `,
  sqlite: `
    drop view steps;
    create table segments_with_states (
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
      state_names text not null,
      checksum integer not null,
      body blob not null,
      states blob not null
    );
    insert into segments_with_states
      select tree, trajectory, first_step_number, next_step_number, namespace, writer_epoch, commit_time, reward_sum, byte_sum,
        rewards, min_reward, max_reward, ends, metric_sums, '[]', checksum, body, x''
      from segments order by tree, trajectory, first_step_number;
    drop table segments;
    alter table segments_with_states rename to segments;
    create unique index segments_by_trajectory on segments (tree, trajectory, first_step_number);
    create index segments_with_states on segments (tree, trajectory, first_step_number) where state_names <> '[]';
    create index segments_by_reward on segments (tree, trajectory, max_reward, first_step_number, min_reward)
      where max_reward is not null;
    alter table attached_states add column data blob;
    create view steps as
      select s.tree, s.trajectory, s.first_step_number + r.key as step_number, s.namespace,
        case r.type when 'text' then case r.value when 'Infinity' then 9e999 when '-Infinity' then -9e999 else r.value end
          when 'null' then null else cast(r.value as real) end as reward,
        coalesce((s.ends ->> cast(r.key as text)) & 1, 0) as terminated,
        coalesce(((s.ends ->> cast(r.key as text)) >> 1) & 1, 0) as truncated,
        s.commit_time, s.first_step_number, s.next_step_number
      from segments as s cross join json_each(s.rewards) as r;
  `,
  convert: moveSmallStates,
};
