import type { MigrationText } from './migration.ts';

/** Rows of steps can be merged: a row has the steps of several commits, and may be compressed. */
export const migration0022: MigrationText = {
  name: '0022_merged_segments',
  postgres: `
    alter table segments add column commits text;
    alter table segments add column last_commit_time timestamptz;
    alter table segments add column encoding bigint not null default 1;
    alter table segments add column body_bytes bigint;
    alter table trajectories add column merged_to bigint not null default 0;
    create or replace view steps as
      select s.tree, s.trajectory, s.first_step_number + r.number - 1 as step_number, s.namespace,
        cast(r.reward as double precision) as reward,
        coalesce(cast(cast(s.ends as json) ->> cast(r.number - 1 as text) as int) & 1, 0) = 1 as terminated,
        coalesce(cast(cast(s.ends as json) ->> cast(r.number - 1 as text) as int) & 2, 0) = 2 as truncated,
        case when s.commits is null then s.commit_time else (
          select cast(c.run ->> 2 as timestamptz) from json_array_elements(cast(s.commits as json)) with ordinality as c(run, place)
          where cast(c.run ->> 0 as bigint) < r.number order by c.place desc limit 1) end as commit_time,
        s.first_step_number, s.next_step_number
      from segments as s
      cross join lateral json_array_elements_text(cast(s.rewards as json)) with ordinality as r(reward, number);
  `,
  sqlite: `
    alter table segments add column commits text;
    alter table segments add column last_commit_time text;
    alter table segments add column encoding integer not null default 1;
    alter table segments add column body_bytes integer;
    alter table trajectories add column merged_to integer not null default 0;
    drop view steps;
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
