import { SmallStates } from '../../src/domain/step_codec/small_states.ts';
import { PLAIN } from '../../src/store/sql/step/stored_body.ts';
import { SegmentCursor, type StoredSegment } from '../../src/store/sql/step/stored_segment.ts';
import type { OutsideSql } from './sql.ts';

/** Gives small states of steps rows of their own, as before migration 20. */
export async function restoreSmallStates(sql: OutsideSql): Promise<void> {
  for (const row of await sql.rows('select *, cast(commit_time as text) as commit_text from segments')) {
    const segment = segmentOf(row);
    const small = new SmallStates(row.states as Uint8Array);
    for (const steps = new SegmentCursor(segment); steps.next(); ) {
      for (const { name, digest, mediaType, size } of steps.read('BASIC').states) {
        const data = small.next(size);
        if (data === undefined) continue;
        const place = { ...row, step_number: steps.stepNumber };
        await giveRow(sql, place, { name, digest, mediaType, data });
      }
    }
  }
  for (const row of await sql.rows('select * from attached_states where data is not null')) {
    const digest = Buffer.from(row.digest as Uint8Array).toString('hex');
    const state = { name: `${row.name}`, digest, mediaType: `${row.media_type}`, data: row.data as Uint8Array };
    await giveRow(sql, row, state);
  }
  await sql.rows('drop index segments_with_states');
  await sql.rows('alter table segments drop column state_names');
  await sql.rows('alter table segments drop column states');
  await sql.rows('alter table attached_states drop column data');
}

interface FormerState {
  readonly name: string;
  readonly digest: string;
  readonly mediaType: string;
  readonly data: Uint8Array;
}

async function giveRow(
  sql: OutsideSql,
  { tree, trajectory, step_number, namespace }: Record<string, unknown>,
  { name, digest, mediaType, data }: FormerState,
): Promise<void> {
  const bytes = (hex: string) => (sql.engine === 'sqlite' ? `x'${hex}'` : `'\\x${hex}'`);
  const time = sql.engine === 'sqlite' ? `'2020-01-01T00:00:00.000000Z'` : 'now()';
  const hex = Buffer.from(data).toString('hex');
  await sql.rows(`insert into states (namespace, digest, size, encoding, data, upload, referenced, version, renew_time)
    values (${text(namespace)}, ${bytes(digest)}, ${data.length}, 'raw', ${bytes(hex)}, null, true, 0, ${time})
    on conflict (namespace, digest) do update set referenced = true`);
  await sql.rows(`insert into step_states (tree, trajectory, step_number, name, namespace, digest, media_type, size)
    values (${tree}, ${trajectory}, ${step_number}, ${text(name)}, ${text(namespace)}, ${bytes(digest)},
      ${text(mediaType)}, ${data.length})`);
}

function segmentOf(row: Record<string, unknown>): StoredSegment {
  return {
    first_step_number: BigInt(`${row.first_step_number}`),
    next_step_number: BigInt(`${row.next_step_number}`),
    writer_epoch: BigInt(`${row.writer_epoch}`),
    commit_time: `${row.commit_text}`,
    commits: null,
    reward_sum: row.reward_sum as number | string,
    checksum: BigInt(`${row.checksum}`),
    encoding: PLAIN,
    body_bytes: null,
    body: row.body as Uint8Array,
  };
}

function text(value: unknown): string {
  return `'${`${value}`.replaceAll("'", "''")}'`;
}
