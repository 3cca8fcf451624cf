import type { MigrationText } from './migration.ts';

/**
 * Steps refer to states by row key, in one table with an index by state. References to states whose rows are missing
 * are dropped: nothing can be read by them.
 */
export const migration0030: MigrationText = {
  name: '0030_state_refs',
  postgres: `
    alter table states add column key bigint generated always as identity;
    create unique index states_by_key on states (key);
    create table state_refs (
      tree bigint not null,
      trajectory bigint not null,
      step_number bigint not null,
      name text collate "C" not null,
      namespace text not null,
      state bigint not null,
      primary key (tree, trajectory, step_number, name, state)
    );
    insert into state_refs (tree, trajectory, step_number, name, namespace, state)
      select r.tree, r.trajectory, r.step_number, r.name, r.namespace, s.key from step_states as r
        join states as s on s.namespace = r.namespace and s.digest = r.digest
      union all
      select r.tree, r.trajectory, r.step_number, '', r.namespace, s.key from content_states as r
        join states as s on s.namespace = r.namespace and s.digest = r.digest
      order by 1, 2, 3;
    drop table step_states;
    drop table content_states;
    create index state_refs_by_state on state_refs (state, tree, trajectory, step_number);
  `,
  // Keys follow the order of rows. The bytes stay the last column, because SQLite reads what is before a column to
  // find it.
  sqlite: `
    create table states_with_keys (
      key integer primary key,
      namespace text not null,
      digest blob not null,
      size integer not null,
      encoding text not null,
      base blob,
      depth integer not null default 0,
      base_bytes integer not null default 0,
      collected integer not null default 0,
      upload text,
      referenced integer not null,
      version integer not null,
      renew_time text not null,
      data blob,
      unique (namespace, digest)
    );
    insert into states_with_keys (namespace, digest, size, encoding, base, depth, base_bytes, collected, upload, referenced, version, renew_time, data)
      select namespace, digest, size, encoding, base, depth, base_bytes, collected, upload, referenced, version, renew_time, data
      from states order by rowid;
    drop table states;
    alter table states_with_keys rename to states;
    create index states_unreferenced on states (renew_time) where not referenced;
    create index states_by_base on states (namespace, base) where base is not null;
    create index states_collected on states (namespace, digest) where collected;
    create table state_refs (
      tree integer not null,
      trajectory integer not null,
      step_number integer not null,
      name text not null,
      namespace text not null,
      state integer not null,
      primary key (tree, trajectory, step_number, name, state)
    ) without rowid;
    insert into state_refs (tree, trajectory, step_number, name, namespace, state)
      select r.tree, r.trajectory, r.step_number, r.name, r.namespace, s.key from step_states as r
        join states as s on s.namespace = r.namespace and s.digest = r.digest
      union all
      select r.tree, r.trajectory, r.step_number, '', r.namespace, s.key from content_states as r
        join states as s on s.namespace = r.namespace and s.digest = r.digest
      order by 1, 2, 3;
    drop table step_states;
    drop table content_states;
    create index state_refs_by_state on state_refs (state, tree, trajectory, step_number);
    insert into sqlite_stat1 (tbl, idx, stat)
      with told (tbl, idx, stat) as (values
        ('states', 'sqlite_autoindex_states_1', '1048576 1048576 1'),
        ('states', 'states_by_base', '1048576 1048576 2'),
        ('states', 'states_collected', '1024 1024 1'))
      select tbl, idx, stat from told where not exists (select 1 from sqlite_stat1 as s where s.tbl = told.tbl and s.idx = told.idx);
    analyze sqlite_schema;
  `,
};
