import { SegmentCursor, type StoredSegment } from '../../src/store/sql/step/stored_segment.ts';
import type { OutsideSql } from './sql.ts';

const STEP_STATES = `create table step_states (tree bigint not null, trajectory bigint not null, step_number bigint not null,
  name text not null, namespace text not null, digest BYTES not null, media_type text not null, size bigint not null,
  primary key (tree, trajectory, step_number, name))`;

const CONTENT_STATES = `create table content_states (tree bigint not null, trajectory bigint not null,
  step_number bigint not null, digest BYTES not null, namespace text not null,
  primary key (tree, trajectory, step_number, digest))`;

/** Gives references of steps the digests and media types of their states, as before migration 30. */
export async function restoreStateRefs(sql: OutsideSql): Promise<void> {
  const bytes = sql.engine === 'sqlite' ? 'blob' : 'bytea';
  for (const table of [STEP_STATES, CONTENT_STATES]) await sql.rows(table.replace('BYTES', bytes));
  const place = 'r.tree, r.trajectory, r.step_number';
  const joined = 'from state_refs as r join states as s on s.key = r.state';
  await sql.rows(`insert into content_states select ${place}, s.digest, r.namespace ${joined} where r.name = ''`);
  await sql.rows(`insert into step_states
    select ${place}, r.name, r.namespace, s.digest, coalesce(a.media_type, ''), s.size ${joined}
    left join attached_states as a on a.tree = r.tree and a.trajectory = r.trajectory
      and a.step_number = r.step_number and a.name = r.name where r.name <> ''`);
  for (const row of await sql.rows(`select *, cast(commit_time as text) as commit_text from segments as s
    where exists (select 1 from step_states as r where r.tree = s.tree and r.trajectory = s.trajectory
      and r.step_number >= s.first_step_number and r.step_number < s.next_step_number)`)) {
    for (const steps = new SegmentCursor(segmentOf(row)); steps.next(); ) {
      for (const { name, mediaType } of steps.read('BASIC').states) {
        if (mediaType === '') continue;
        await sql.rows(`update step_states set media_type = '${mediaType.replaceAll("'", "''")}'
          where trajectory = ${row.trajectory} and step_number = ${steps.stepNumber} and name = '${name}'`);
      }
    }
  }
  await sql.rows('drop table state_refs');
  if (sql.engine === 'postgres') await sql.rows('alter table states drop column key');
  else await dropKeys(sql);
}

/** SQLite cannot drop the column of a primary key. */
async function dropKeys(sql: OutsideSql): Promise<void> {
  const columns = `namespace, digest, size, encoding, base, depth, base_bytes, collected, upload, referenced, version,
    renew_time, data`;
  await sql.rows(`create table states_without_keys (namespace text not null, digest blob not null, size integer not null,
    encoding text not null, base blob, depth integer not null default 0, base_bytes integer not null default 0,
    collected integer not null default 0, upload text, referenced integer not null, version integer not null,
    renew_time text not null, data blob, primary key (namespace, digest))`);
  await sql.rows(`insert into states_without_keys select ${columns} from states order by key`);
  await sql.rows('drop table states');
  await sql.rows('alter table states_without_keys rename to states');
  await sql.rows('create index states_unreferenced on states (renew_time) where not referenced');
  await sql.rows('create index states_by_base on states (namespace, base) where base is not null');
  await sql.rows('create index states_collected on states (namespace, digest) where collected');
}

function segmentOf(row: Record<string, unknown>): StoredSegment {
  return {
    first_step_number: BigInt(`${row.first_step_number}`),
    next_step_number: BigInt(`${row.next_step_number}`),
    writer_epoch: BigInt(`${row.writer_epoch}`),
    commit_time: `${row.commit_text}`,
    commits: row.commits as string | null,
    reward_sum: row.reward_sum as number | string,
    checksum: BigInt(`${row.checksum}`),
    encoding: BigInt(`${row.encoding}`),
    body_bytes: row.body_bytes === null ? null : BigInt(`${row.body_bytes}`),
    body: row.body as Uint8Array,
  };
}
