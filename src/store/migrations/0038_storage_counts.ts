import type { MigrationText } from './migration.ts';

/** Counts all rows. */
const COUNT_ALL = `
    update segments set body_bytes = octet_length(body) where body_bytes is null;
    insert into storage_counts
      select namespace, sum(step_logical), sum(step_stored), sum(state_logical), sum(state_stored) from (
        select namespace, body_bytes as step_logical, octet_length(body) as step_stored,
          coalesce(states_bytes, octet_length(states)) as state_logical, octet_length(states) as state_stored
        from segments
        union all
        select namespace, 0, 0, octet_length(data), octet_length(data) from attached_states where data is not null
        union all
        select r.namespace, 0, 0, s.size, 0 from state_refs as r inner join states as s on s.key = r.state
        union all
        select namespace, 0, 0, 0, octet_length(data) from states where data is not null
        union all
        select namespace, 0, 0, 0, octet_length(data) from state_chunks where data is not null
      ) as u group by namespace;
    create index trajectories_uncounted on trajectories (namespace, tree, key) where not counted;
`;

type Event = 'insert' | 'delete' | 'update';

/** What a row of each table adds: logical and stored bytes of steps, then of states. */
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

function sqliteTriggers(): string {
  const tables = Object.keys(BYTES) as (keyof typeof BYTES)[];
  return tables
    .flatMap((table) => (['insert', 'delete', 'update'] as const).map((event) => sqliteTrigger(table, event)))
    .join('\n');
}

function sqliteTrigger(table: keyof typeof BYTES, event: Event): string {
  const columns = COUNTED[table];
  const count = (row: 'new' | 'old') => {
    const bytes = BYTES[table](row).map((each) => (row === 'old' ? `- ${each}` : each));
    return `insert into storage_counts select ${row}.namespace, ${bytes.join(', ')} where ${row}.${columns[0]} is not null
        on conflict (namespace) do update set step_logical = step_logical + excluded.step_logical,
          step_stored = step_stored + excluded.step_stored, state_logical = state_logical + excluded.state_logical,
          state_stored = state_stored + excluded.state_stored; `;
  };
  const rows =
    event === 'update' ? (['old', 'new'] as const) : event === 'insert' ? (['new'] as const) : (['old'] as const);
  const when = event === 'update' ? '' : ` when ${rows[0]}.${columns[0]} is not null`;
  return `create trigger ${table}_counted_${event} after ${event}${event === 'update' ? ` of ${columns.join(', ')}` : ''}
      on ${table}${when} begin ${rows.map(count).join('')}end;`;
}

/**
 * The bytes that rows take are added up by namespace, by triggers. Rows of appended steps are counted once they are
 * merged: `body_bytes` is set then, and only then. A trajectory is `counted` if all its rows are.
 *
 * Semicolons at line ends separate statements, so a function or a trigger has none there.
 */
export const migration0038: MigrationText = {
  name: '0038_storage_counts',
  // Transactions add rows, so that none waits for another one. Maintenance adds them up.
  postgres: `
    create table storage_counts (
      namespace text not null,
      step_logical bigint not null,
      step_stored bigint not null,
      state_logical bigint not null,
      state_stored bigint not null
    );
    alter table trajectories add column counted boolean not null default true;
    ${COUNT_ALL}
    create function count_segment() returns trigger language plpgsql set search_path from current as $$ begin
      if tg_op <> 'DELETE' and new.body_bytes is not null then
        insert into storage_counts values (new.namespace, new.body_bytes, octet_length(new.body),
          coalesce(new.states_bytes, octet_length(new.states)), octet_length(new.states)); end if; /**/
      if tg_op <> 'INSERT' and old.body_bytes is not null then
        insert into storage_counts values (old.namespace, - old.body_bytes, - octet_length(old.body),
          - coalesce(old.states_bytes, octet_length(old.states)), - octet_length(old.states)); end if; /**/
      return null; end $$;
    create trigger segments_counted_insert after insert on segments
      for each row when (new.body_bytes is not null) execute function count_segment();
    create trigger segments_counted_delete after delete on segments
      for each row when (old.body_bytes is not null) execute function count_segment();
    create trigger segments_counted_update after update of body, body_bytes, states, states_bytes on segments
      for each row execute function count_segment();
    create function count_references() returns trigger language plpgsql set search_path from current as $$ begin
      insert into storage_counts
        select r.namespace, 0, 0, (case tg_op when 'DELETE' then -1 else 1 end) * sum(s.size), 0
        from changed as r inner join states as s on s.key = r.state group by r.namespace; /**/
      return null; end $$;
    create trigger state_refs_counted_insert after insert on state_refs referencing new table as changed
      for each statement execute function count_references();
    create trigger state_refs_counted_delete after delete on state_refs referencing old table as changed
      for each statement execute function count_references();
    create function count_data() returns trigger language plpgsql set search_path from current as $$ begin
      insert into storage_counts
        select namespace, 0, 0, 0, (case tg_op when 'DELETE' then -1 else 1 end) * sum(octet_length(data))
        from changed where data is not null group by namespace; /**/
      return null; end $$;
    create trigger states_counted_insert after insert on states referencing new table as changed
      for each statement execute function count_data();
    create trigger states_counted_delete after delete on states referencing old table as changed
      for each statement execute function count_data();
    create trigger state_chunks_counted_insert after insert on state_chunks referencing new table as changed
      for each statement execute function count_data();
    create trigger state_chunks_counted_delete after delete on state_chunks referencing old table as changed
      for each statement execute function count_data();
    create function count_attached() returns trigger language plpgsql set search_path from current as $$ begin
      insert into storage_counts
        select namespace, 0, 0, bytes, bytes from (
          select namespace, (case tg_op when 'DELETE' then -1 else 1 end) * sum(octet_length(data)) as bytes
          from changed where data is not null group by namespace) as c; /**/
      return null; end $$;
    create trigger attached_states_counted_insert after insert on attached_states referencing new table as changed
      for each statement execute function count_attached();
    create trigger attached_states_counted_delete after delete on attached_states referencing old table as changed
      for each statement execute function count_attached();
    create function count_change_of_data() returns trigger language plpgsql set search_path from current as $$
      declare bytes bigint = coalesce(octet_length(new.data), 0) - coalesce(octet_length(old.data), 0); begin
      insert into storage_counts
        values (new.namespace, 0, 0, case tg_table_name when 'attached_states' then bytes else 0 end, bytes); /**/
      return null; end $$;
    create trigger states_counted_update after update of data on states
      for each row execute function count_change_of_data();
    create trigger state_chunks_counted_update after update of data on state_chunks
      for each row execute function count_change_of_data();
    create trigger attached_states_counted_update after update of data on attached_states
      for each row execute function count_change_of_data();
    create function uncount_trajectory() returns trigger language plpgsql as $$ begin
      new.counted = false; /**/ return new; end $$;
    create trigger trajectories_uncounted before update of next_step_number on trajectories
      for each row when (old.counted and new.next_step_number > old.next_step_number)
      execute function uncount_trajectory();
  `,
  // One transaction writes at a time, so each namespace has one row.
  sqlite: `
    create table storage_counts (
      namespace text not null primary key,
      step_logical integer not null,
      step_stored integer not null,
      state_logical integer not null,
      state_stored integer not null
    ) without rowid;
    alter table trajectories add column counted integer not null default 1;
    ${COUNT_ALL}
    ${sqliteTriggers()}
    create trigger trajectories_uncounted after update of next_step_number on trajectories
      when old.counted and new.next_step_number > old.next_step_number
      begin update trajectories set counted = 0 where tree = new.tree and key = new.key; end;
  `,
};
