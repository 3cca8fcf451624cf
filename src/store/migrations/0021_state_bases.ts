import type { MigrationText } from './migration.ts';

/** A state can be stored as the changes of another one, its base. Stored states stay whole. */
export const migration0021: MigrationText = {
  name: '0021_state_bases',
  postgres: `
    alter table states add column base bytea;
    alter table states add column depth bigint not null default 0;
    alter table states add column base_bytes bigint not null default 0;
    alter table states add column collected boolean not null default false;
    create index states_by_base on states (namespace, base) where base is not null;
    create index states_collected on states (namespace, digest) where collected;
  `,
  // The bytes stay the last column, because SQLite reads what is before a column to find it.
  sqlite: `
    create table states_with_bases (
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
      primary key (namespace, digest)
    );
    insert into states_with_bases (namespace, digest, size, encoding, upload, referenced, version, renew_time, data)
      select namespace, digest, size, encoding, upload, referenced, version, renew_time, data from states order by rowid;
    drop table states;
    alter table states_with_bases rename to states;
    create index states_unreferenced on states (renew_time) where not referenced;
    create index states_by_base on states (namespace, base) where base is not null;
    create index states_collected on states (namespace, digest) where collected;
    insert into sqlite_stat1 (tbl, idx, stat) values
      ('states', 'sqlite_autoindex_states_1', '1048576 1048576 1'),
      ('states', 'states_by_base', '1048576 1048576 2'),
      ('states', 'states_collected', '1024 1024 1');
    analyze sqlite_schema;
  `,
};
