/** What a row of each table adds to `storage_counts`: logical and stored bytes of steps, then of states. */
const BYTES = {
  segments: (row: string) => [
    `${row}.body_bytes`,
    `octet_length(${row}.body)`,
    `coalesce(${row}.states_bytes, octet_length(${row}.states))`,
    `octet_length(${row}.states)`,
  ],
  state_refs: (row: string) => [
    '0',
    '0',
    `coalesce((select s.size from states as s where s.key = ${row}.state), 0)`,
    '0',
  ],
  attached_states: (row: string) => ['0', '0', `octet_length(${row}.data)`, `octet_length(${row}.data)`],
  states: (row: string) => ['0', '0', '0', `octet_length(${row}.data)`],
  state_chunks: (row: string) => ['0', '0', '0', `octet_length(${row}.data)`],
};

/** The columns that say whether a row is counted, and how much it adds. */
const COUNTED = {
  segments: ['body_bytes', 'body', 'states', 'states_bytes'],
  state_refs: ['state'],
  attached_states: ['data'],
  states: ['data'],
  state_chunks: ['data'],
} as const;

type Table = keyof typeof BYTES;

function countOnSqlite(table: Table, event: 'insert' | 'delete' | 'update'): string {
  const columns = COUNTED[table];
  const count = (row: 'new' | 'old') => {
    const bytes = BYTES[table](row).map((each) => (row === 'old' ? `- ${each}` : each));
    return `
  insert into storage_counts select ${row}.namespace, ${bytes.join(', ')} where ${row}.${columns[0]} is not null
    on conflict (namespace) do update set step_logical = step_logical + excluded.step_logical,
      step_stored = step_stored + excluded.step_stored, state_logical = state_logical + excluded.state_logical,
      state_stored = state_stored + excluded.state_stored;`;
  };
  const trigger = `create trigger ${table}_counted_${event} after ${event}`;
  if (event === 'update')
    return `${trigger} of ${columns.join(', ')} on ${table} begin${count('old')}${count('new')}\nend;`;
  const row = event === 'insert' ? 'new' : 'old';
  return `${trigger} on ${table} when ${row}.${columns[0]} is not null begin${count(row)}\nend;`;
}

const SQLITE_COUNTS = (Object.keys(BYTES) as Table[])
  .flatMap((table) => (['insert', 'delete', 'update'] as const).map((event) => countOnSqlite(table, event)))
  .join('\n');

export const SQLITE_TRIGGERS = `
-- Storage counts.
${SQLITE_COUNTS}
create trigger trajectories_uncounted after update of next_step_number on trajectories
  when old.counted and new.next_step_number > old.next_step_number begin
  update trajectories set counted = 0 where tree = new.tree and key = new.key;
end;

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
-- Storage counts.
create function count_segment() returns trigger language plpgsql set search_path from current as $$
  begin
    if tg_op <> 'DELETE' and new.body_bytes is not null then
      insert into storage_counts values (new.namespace, new.body_bytes, octet_length(new.body),
        coalesce(new.states_bytes, octet_length(new.states)), octet_length(new.states));
    end if;
    if tg_op <> 'INSERT' and old.body_bytes is not null then
      insert into storage_counts values (old.namespace, - old.body_bytes, - octet_length(old.body),
        - coalesce(old.states_bytes, octet_length(old.states)), - octet_length(old.states));
    end if;
    return null;
  end $$;
create trigger segments_counted_insert after insert on segments
  for each row when (new.body_bytes is not null) execute function count_segment();
create trigger segments_counted_delete after delete on segments
  for each row when (old.body_bytes is not null) execute function count_segment();
create trigger segments_counted_update after update of body, body_bytes, states, states_bytes on segments
  for each row execute function count_segment();
create function count_references() returns trigger language plpgsql set search_path from current as $$
  begin
    insert into storage_counts
      select r.namespace, 0, 0, (case tg_op when 'DELETE' then -1 else 1 end) * sum(s.size), 0
      from changed as r inner join states as s on s.key = r.state group by r.namespace;
    return null;
  end $$;
create trigger state_refs_counted_insert after insert on state_refs referencing new table as changed
  for each statement execute function count_references();
create trigger state_refs_counted_delete after delete on state_refs referencing old table as changed
  for each statement execute function count_references();
create function count_data() returns trigger language plpgsql set search_path from current as $$
  begin
    insert into storage_counts
      select namespace, 0, 0, 0, (case tg_op when 'DELETE' then -1 else 1 end) * sum(octet_length(data))
      from changed where data is not null group by namespace;
    return null;
  end $$;
create trigger states_counted_insert after insert on states referencing new table as changed
  for each statement execute function count_data();
create trigger states_counted_delete after delete on states referencing old table as changed
  for each statement execute function count_data();
create trigger state_chunks_counted_insert after insert on state_chunks referencing new table as changed
  for each statement execute function count_data();
create trigger state_chunks_counted_delete after delete on state_chunks referencing old table as changed
  for each statement execute function count_data();
create function count_attached() returns trigger language plpgsql set search_path from current as $$
  begin
    insert into storage_counts
      select namespace, 0, 0, bytes, bytes from (
        select namespace, (case tg_op when 'DELETE' then -1 else 1 end) * sum(octet_length(data)) as bytes
        from changed where data is not null group by namespace) as c;
    return null;
  end $$;
create trigger attached_states_counted_insert after insert on attached_states referencing new table as changed
  for each statement execute function count_attached();
create trigger attached_states_counted_delete after delete on attached_states referencing old table as changed
  for each statement execute function count_attached();
create function count_change_of_data() returns trigger language plpgsql set search_path from current as $$
  declare bytes bigint = coalesce(octet_length(new.data), 0) - coalesce(octet_length(old.data), 0);
  begin
    insert into storage_counts
      values (new.namespace, 0, 0, case tg_table_name when 'attached_states' then bytes else 0 end, bytes);
    return null;
  end $$;
create trigger states_counted_update after update of data on states
  for each row execute function count_change_of_data();
create trigger state_chunks_counted_update after update of data on state_chunks
  for each row execute function count_change_of_data();
create trigger attached_states_counted_update after update of data on attached_states
  for each row execute function count_change_of_data();
create function uncount_trajectory() returns trigger language plpgsql as $$
  begin
    new.counted = false;
    return new;
  end $$;
create trigger trajectories_uncounted before update of next_step_number on trajectories
  for each row when (old.counted and new.next_step_number > old.next_step_number)
  execute function uncount_trajectory();

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
