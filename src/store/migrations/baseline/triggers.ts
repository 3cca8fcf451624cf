export const SQLITE_TRIGGERS = `
-- Names of states. Names that are damaged prevent no deletion: then the index keeps its rows.
create trigger segments_named_insert after insert on segments
  when new.body_bytes is not null and new.state_names <> '[]' begin
  insert into segment_state_names
    select distinct new.tree, new.trajectory, r.value ->> 0 as name, new.first_step_number
    from json_each(new.state_names) as r where new.body_bytes is not null and new.state_names <> '[]';
end;
create trigger segments_named_delete after delete on segments
  when old.body_bytes is not null and old.state_names <> '[]' begin
  delete from segment_state_names
    where tree = old.tree and trajectory = old.trajectory and first_step_number = old.first_step_number and name in (
      select r.value ->> 0 from json_each(case when json_valid(old.state_names) then old.state_names else '[]' end) as r);
end;
create trigger segments_named_update after update of body_bytes, state_names on segments begin
  delete from segment_state_names
    where tree = old.tree and trajectory = old.trajectory and first_step_number = old.first_step_number and name in (
      select r.value ->> 0 from json_each(case when json_valid(old.state_names) then old.state_names else '[]' end) as r);
  insert into segment_state_names
    select distinct new.tree, new.trajectory, r.value ->> 0 as name, new.first_step_number
    from json_each(new.state_names) as r where new.body_bytes is not null and new.state_names <> '[]';
end;
`;

export const POSTGRES_TRIGGERS = `
-- Names of states. Names that are damaged prevent no deletion: then the index keeps its rows.
create function name_segment() returns trigger language plpgsql set search_path from current as $$
  begin
    if tg_op <> 'INSERT' and old.body_bytes is not null and old.state_names <> '[]' then
      begin
        delete from segment_state_names
          where tree = old.tree and trajectory = old.trajectory and first_step_number = old.first_step_number
            and name in (select r.value ->> 0 from json_array_elements(old.state_names::json) as r);
      exception when invalid_text_representation then null;
      end;
    end if;
    if tg_op <> 'DELETE' and new.body_bytes is not null and new.state_names <> '[]' then
      insert into segment_state_names
        select distinct new.tree, new.trajectory, r.value ->> 0 as name, new.first_step_number
        from json_array_elements(new.state_names::json) as r;
    end if;
    return null;
  end $$;
create trigger segments_named_insert after insert on segments
  for each row when (new.body_bytes is not null and new.state_names <> '[]') execute function name_segment();
create trigger segments_named_delete after delete on segments
  for each row when (old.body_bytes is not null and old.state_names <> '[]') execute function name_segment();
create trigger segments_named_update after update of body_bytes, state_names on segments
  for each row when (old.state_names <> new.state_names or (old.body_bytes is null) <> (new.body_bytes is null))
  execute function name_segment();
`;
