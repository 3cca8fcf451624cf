import { SmallStates } from '../../src/domain/step_codec/small_states.ts';
import { PLAIN } from '../../src/store/sql/step/stored_body.ts';
import { SegmentCursor, type StoredSegment } from '../../src/store/sql/step/stored_segment.ts';
import type { OutsideSql } from './sql.ts';

/** Gives small states of steps rows of their own, as before migration 20. */
export async function restoreSmallStates(sql: OutsideSql): Promise<void> {
  for (const row of await sql.rows('select *, cast(commit_time as text) as commit_text from segments')) {
    const segment = segmentOf(row);
    const small = new SmallStates(row.states as Uint8Array);
    const found: FormerState[] = [];
    for (const steps = new SegmentCursor(segment); steps.next(); ) {
      for (const { name, digest, mediaType, size } of steps.read('BASIC').states) {
        const data = small.next(size);
        if (data !== undefined) found.push({ stepNumber: steps.stepNumber, name, digest, mediaType, data });
      }
    }
    await giveRows(sql, row, found);
  }
  for (const row of await sql.rows('select * from attached_states where data is not null')) {
    const digest = Buffer.from(row.digest as Uint8Array).toString('hex');
    const [stepNumber, data] = [row.step_number as bigint | string, row.data as Uint8Array];
    await giveRows(sql, row, [{ stepNumber, name: `${row.name}`, digest, mediaType: `${row.media_type}`, data }]);
  }
  await sql.rows('drop index segments_with_states');
  await sql.rows('alter table segments drop column state_names');
  await sql.rows('alter table segments drop column states');
  await sql.rows('alter table attached_states drop column data');
}

interface FormerState {
  readonly stepNumber: bigint | string;
  readonly name: string;
  readonly digest: string;
  readonly mediaType: string;
  readonly data: Uint8Array;
}

/** The states are of steps of one trajectory. */
async function giveRows(
  sql: OutsideSql,
  { tree, trajectory, namespace }: Record<string, unknown>,
  states: readonly FormerState[],
): Promise<void> {
  if (states.length === 0) return;
  const bytes = (hex: string) => (sql.engine === 'sqlite' ? `x'${hex}'` : `'\\x${hex}'::bytea`);
  const time = sql.engine === 'sqlite' ? `'2020-01-01T00:00:00.000000Z'` : 'now()';
  // A statement cannot update a row twice.
  const distinct = new Map(states.map((state) => [state.digest, state]));
  const rows = [...distinct.values()].map(({ digest, data }) => {
    const hex = Buffer.from(data).toString('hex');
    return `(${text(namespace)}, ${bytes(digest)}, ${data.length}, 'raw', ${bytes(hex)}, null, true, 0, ${time})`;
  });
  await sql.rows(`insert into states (namespace, digest, size, encoding, data, upload, referenced, version, renew_time)
    values ${rows.join()} on conflict (namespace, digest) do update set referenced = true`);
  const references = states.map(({ stepNumber, name, digest, mediaType, data }) => {
    const place = `${tree}, ${trajectory}, ${stepNumber}`;
    return `(${place}, ${text(name)}, ${text(namespace)}, ${bytes(digest)}, ${text(mediaType)}, ${data.length})`;
  });
  await sql.rows(`insert into step_states (tree, trajectory, step_number, name, namespace, digest, media_type, size)
    values ${references.join()}`);
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
