import type { MigrationText } from './migration.ts';

/** Values of step metrics that trajectories declare, so that lists can sort steps by them. */
export const migration0024: MigrationText = {
  name: '0024_step_scores',
  postgres: `
    alter table trajectories add column scored_metrics text not null default '[]';
    create table step_scores (
      tree bigint not null,
      trajectory bigint not null,
      step_number bigint not null,
      metric text collate "C" not null,
      namespace text not null,
      value double precision not null,
      primary key (tree, trajectory, step_number, metric)
    );
    create index step_scores_by_value on step_scores (tree, trajectory, metric, value, step_number);
  `,
  sqlite: `
    alter table trajectories add column scored_metrics text not null default '[]';
    create table step_scores (
      tree integer not null,
      trajectory integer not null,
      step_number integer not null,
      metric text not null,
      namespace text not null,
      value not null,
      primary key (tree, trajectory, step_number, metric)
    ) without rowid;
    create index step_scores_by_value on step_scores (tree, trajectory, metric, value, step_number);
  `,
};
