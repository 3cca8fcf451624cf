import type { MigrationText } from './migration.ts';

/** A piece of a large state can refer to an equal piece of an earlier state. Stored pieces stay as they are. */
export const migration0023: MigrationText = {
  name: '0023_shared_pieces',
  postgres: `
    alter table state_chunks alter column data drop not null;
    alter table state_chunks add column piece_upload uuid;
    create index state_chunks_by_piece on state_chunks (piece_upload, ordinal) where piece_upload is not null;
  `,
  // The bytes stay the last column, because SQLite reads what is before a column to find it.
  sqlite: `
    create table chunks_with_pieces (
      upload text not null,
      ordinal integer not null,
      namespace text not null,
      digest blob not null,
      size integer not null,
      encoding text not null,
      piece_upload text,
      data blob,
      primary key (upload, ordinal)
    );
    insert into chunks_with_pieces (upload, ordinal, namespace, digest, size, encoding, data)
      select upload, ordinal, namespace, digest, size, encoding, data from state_chunks order by rowid;
    drop table state_chunks;
    alter table chunks_with_pieces rename to state_chunks;
    create index state_chunks_by_piece on state_chunks (piece_upload, ordinal) where piece_upload is not null;
  `,
};
