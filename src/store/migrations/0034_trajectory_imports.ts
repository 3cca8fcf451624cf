import type { MigrationText } from './migration.ts';

/** Trajectories that are being imported. They are hidden until the import has all their steps. */
export const migration0034: MigrationText = {
  name: '0034_trajectory_imports',
  postgres: `
    create table trajectory_imports (
      tree bigint not null,
      trajectory bigint not null,
      namespace text not null,
      renew_time timestamptz not null,
      primary key (tree, trajectory)
    );
  `,
  sqlite: `
    create table trajectory_imports (
      tree integer not null,
      trajectory integer not null,
      namespace text not null,
      renew_time text not null,
      primary key (tree, trajectory)
    ) without rowid;
  `,
};
