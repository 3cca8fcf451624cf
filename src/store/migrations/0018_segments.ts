import type { Migration } from './migration.ts';
import { conversionTable } from './segments/conversion_table.ts';
import { convertSome } from './segments/convert.ts';

/**
 * Stores consecutive steps of a trajectory in one row, in protobuf's encoding. The view `steps` takes the place of the
 * table. The trajectory's row has the duration of its turns.
 *
 * Tables whose rows later migrations convert are renamed, and made again without rows. So these migrations change empty
 * tables, and the conversion writes each row once, in its last form.
 */
export const migration0018: Migration = {
  name: '0018_segments',
  postgres: `
    create table segments (
      tree bigint not null,
      trajectory bigint not null,
      first_step_number bigint not null,
      next_step_number bigint not null,
      namespace text not null,
      writer_epoch bigint not null,
      commit_time timestamptz not null,
      reward_sum double precision not null,
      byte_sum bigint not null,
      rewards text not null,
      ends text not null,
      metric_sums text not null,
      checksum bigint not null,
      body bytea not null,
      primary key (tree, trajectory, first_step_number)
    );
    alter table segments alter column body set storage external;
    create table attached_states (
      tree bigint not null,
      trajectory bigint not null,
      step_number bigint not null,
      name text not null,
      namespace text not null,
      digest bytea not null,
      media_type text not null,
      size bigint not null,
      primary key (tree, trajectory, step_number, name)
    );
    alter table trajectories add column timed_turns bigint not null default 0;
    alter table trajectories add column turn_seconds double precision not null default 0;
    alter table steps rename to former_steps;
    alter table step_states rename to former_step_states;
    alter table content_states rename to former_content_states;
    alter table states rename to former_states;
    drop index states_unreferenced;
    alter index states_pkey rename to former_states_pkey;
    create table step_states (like former_step_states including all);
    create table content_states (like former_content_states including all);
    create table states (like former_states including all);
    create index states_unreferenced on states (renew_time) where not referenced;
    ${conversionTable('bytea')}
    create view steps as
      select s.tree, s.trajectory, s.first_step_number + r.number - 1 as step_number, s.namespace,
        cast(r.reward as double precision) as reward,
        coalesce(cast(cast(s.ends as json) ->> cast(r.number - 1 as text) as int) & 1, 0) = 1 as terminated,
        coalesce(cast(cast(s.ends as json) ->> cast(r.number - 1 as text) as int) & 2, 0) = 2 as truncated,
        s.commit_time, s.first_step_number, s.next_step_number
      from segments as s
      cross join lateral json_array_elements_text(cast(s.rewards as json)) with ordinality as r(reward, number);
  `,
  sqlite: `
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
      ends text not null,
      metric_sums text not null,
      checksum integer not null,
      body blob not null
    );
    create unique index segments_by_trajectory on segments (tree, trajectory, first_step_number);
    create table attached_states (
      tree integer not null,
      trajectory integer not null,
      step_number integer not null,
      name text not null,
      namespace text not null,
      digest blob not null,
      media_type text not null,
      size integer not null,
      primary key (tree, trajectory, step_number, name)
    ) without rowid;
    alter table trajectories add column timed_turns integer not null default 0;
    alter table trajectories add column turn_seconds not null default 0;
    alter table steps rename to former_steps;
    alter table step_states rename to former_step_states;
    alter table content_states rename to former_content_states;
    alter table states rename to former_states;
    alter table state_chunks rename to former_chunks;
    drop index states_unreferenced;
    create table step_states (
      tree integer not null,
      trajectory integer not null,
      step_number integer not null,
      name text not null,
      namespace text not null,
      digest blob not null,
      media_type text not null,
      size integer not null,
      primary key (tree, trajectory, step_number, name)
    ) without rowid;
    create table content_states (
      tree integer not null,
      trajectory integer not null,
      step_number integer not null,
      digest blob not null,
      namespace text not null,
      primary key (tree, trajectory, step_number, digest)
    ) without rowid;
    create table states (
      namespace text not null,
      digest blob not null,
      size integer not null,
      encoding text not null,
      upload text,
      referenced integer not null,
      version integer not null,
      renew_time text not null,
      data blob,
      primary key (namespace, digest)
    );
    create index states_unreferenced on states (renew_time) where not referenced;
    create table state_chunks (
      upload text not null,
      ordinal integer not null,
      namespace text not null,
      digest blob not null,
      size integer not null,
      encoding text not null,
      data blob not null,
      primary key (upload, ordinal)
    );
    ${conversionTable('blob')}
    create view steps as
      select s.tree, s.trajectory, s.first_step_number + r.key as step_number, s.namespace,
        case r.type when 'text' then case r.value when 'Infinity' then 9e999 when '-Infinity' then -9e999 else r.value end
          when 'null' then null else cast(r.value as real) end as reward,
        coalesce((s.ends ->> cast(r.key as text)) & 1, 0) as terminated,
        coalesce(((s.ends ->> cast(r.key as text)) >> 1) & 1, 0) as truncated,
        s.commit_time, s.first_step_number, s.next_step_number
      from segments as s cross join json_each(s.rewards) as r;
  `,
  conversion: {
    convertSome,
    end: `drop table former_steps; drop table former_step_states; drop table former_content_states;
      drop table former_states; drop table if exists former_chunks; drop table conversion;
      drop index trajectories_by_depth`,
  },
};
