/**
 * The table with the progress of the conversion. Of chunks (SQLite only): the key of the last row that was copied. Of
 * steps: the last trajectory whose steps are all converted or, with `next_step_number`, the one whose steps before this
 * number are. Of states: the last one that was looked at.
 */
export function conversionTable(bytes: 'bytea' | 'blob'): string {
  const chunks = bytes === 'blob' ? '(select count(*) from former_chunks)' : '0';
  return `create table conversion (last_chunk bigint not null, done_chunks bigint not null, total_chunks bigint not null,
      depth bigint not null, key bigint not null, next_step_number bigint,
      done_steps bigint not null, total_steps bigint not null,
      state_namespace text not null, state_digest ${bytes} not null,
      done_states bigint not null, total_states bigint not null);
    insert into conversion select 0, 0, ${chunks}, -1, 0, null, 0,
      coalesce(sum(next_step_number - coalesce(branch_point + 1, 0)), 0), '', '', 0,
      (select count(*) from former_states) from trajectories;
    create index trajectories_by_depth on trajectories (depth, key);`;
}

export interface ConversionRow {
  readonly last_chunk: bigint;
  readonly done_chunks: bigint;
  readonly total_chunks: bigint;
  readonly depth: bigint;
  readonly key: bigint;
  readonly next_step_number: bigint | null;
  readonly done_steps: bigint;
  readonly total_steps: bigint;
  readonly state_namespace: string;
  readonly state_digest: Uint8Array;
  readonly done_states: bigint;
  readonly total_states: bigint;
}
