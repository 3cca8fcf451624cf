import type { MigrationText } from './migration.ts';

/** Rows of the index of a stored segment `row`: the names of the states of its steps. */
function namesOf(row: string, runs: string): string {
  return `select distinct ${row}.tree, ${row}.trajectory, r.value ->> 0 as name, ${row}.first_step_number
      from ${runs} as r`;
}

const FILL = (runs: string) => `
    insert into segment_state_names
      select distinct s.tree, s.trajectory, r.value ->> 0, s.first_step_number
      from segments as s cross join ${runs} as r
      where s.body_bytes is not null and s.state_names <> '[]' order by 1, 2, 3, 4;
    alter table trajectories add column named_to bigint not null default 0;
    update trajectories set named_to = merged_to where merged_to > 0;`;

const isNamed = (row: string) => `${row}.body_bytes is not null and ${row}.state_names <> '[]'`;

const SQLITE_INSERT = `insert into segment_state_names ${namesOf('new', 'json_each(new.state_names)')} where ${isNamed('new')}; `;
const SQLITE_DELETE = `delete from segment_state_names where tree = old.tree and trajectory = old.trajectory
        and first_step_number = old.first_step_number
        and name in (select r.value ->> 0
          from json_each(case when json_valid(old.state_names) then old.state_names else '[]' end) as r); `;

/**
 * Finds the stored segments that have states of a name. Like the totals of migration 38, triggers keep it: for rows of
 * steps that are counted, so that appends write nothing. Every row that begins before `named_to` is counted. Names that
 * are damaged prevent no deletion: then the index keeps its rows.
 *
 * Semicolons at line ends separate statements, so a function or a trigger has none there.
 */
export const migration0040: MigrationText = {
  name: '0040_state_name_index',
  postgres: `
    create table segment_state_names (
      tree bigint not null,
      trajectory bigint not null,
      name text collate "C" not null,
      first_step_number bigint not null,
      primary key (tree, trajectory, name, first_step_number)
    );
    ${FILL('json_array_elements(s.state_names::json)')}
    create function name_segment() returns trigger language plpgsql set search_path from current as $$ begin
      if tg_op <> 'INSERT' and ${isNamed('old')} then
        begin
          delete from segment_state_names where tree = old.tree and trajectory = old.trajectory
            and first_step_number = old.first_step_number
            and name in (select r.value ->> 0 from json_array_elements(old.state_names::json) as r); /**/
        exception when invalid_text_representation then null; /**/ end; /**/ end if; /**/
      if tg_op <> 'DELETE' and ${isNamed('new')} then
        insert into segment_state_names ${namesOf('new', 'json_array_elements(new.state_names::json)')}; end if; /**/
      return null; end $$;
    create trigger segments_named_insert after insert on segments
      for each row when (${isNamed('new')}) execute function name_segment();
    create trigger segments_named_delete after delete on segments
      for each row when (${isNamed('old')}) execute function name_segment();
    create trigger segments_named_update after update of body_bytes, state_names on segments
      for each row when (old.state_names <> new.state_names or (old.body_bytes is null) <> (new.body_bytes is null))
      execute function name_segment();
  `,
  sqlite: `
    create table segment_state_names (
      tree integer not null,
      trajectory integer not null,
      name text not null,
      first_step_number integer not null,
      primary key (tree, trajectory, name, first_step_number)
    ) without rowid;
    ${FILL('json_each(s.state_names)')}
    create trigger segments_named_insert after insert on segments when ${isNamed('new')}
      begin ${SQLITE_INSERT}end;
    create trigger segments_named_delete after delete on segments when ${isNamed('old')}
      begin ${SQLITE_DELETE}end;
    create trigger segments_named_update after update of body_bytes, state_names on segments
      begin ${SQLITE_DELETE}${SQLITE_INSERT}end;
  `,
};
