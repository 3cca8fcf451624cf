import { type Kysely, type RawBuilder, type SqlBool, sql } from 'kysely';
import type { ConversionProgress } from '../migration.ts';
import { SMALL } from '../small_states/move_small_states.ts';
import type { ConversionRow } from './conversion_table.ts';

/** Consecutive own steps of a trajectory. */
export interface StepRange {
  readonly tree: bigint;
  readonly trajectory: bigint;
  readonly first: bigint;
  readonly next: bigint;
}

/** A reference of a step to a small state that cannot be read. */
export interface KeptReference {
  readonly tree: bigint;
  readonly trajectory: bigint;
  readonly step_number: bigint;
  readonly name: string;
  readonly namespace: string;
  readonly digest: Uint8Array;
}

/** Rows and bytes of one transaction. */
const ROWS = 1000;
const BYTES = 8 * 1024 * 1024;

const COLUMNS = sql`namespace, digest, size, encoding, upload, referenced, version, renew_time, data`;

/** Inserts those of the former states that meet a condition, unless they were inserted before. Returns their bytes. */
async function copyStates<T>(db: Kysely<T>, referenced: boolean, where: RawBuilder<SqlBool>): Promise<number> {
  const { rows } = await sql<{ bytes: bigint | number | null }>`insert into states (${COLUMNS})
    select f.namespace, f.digest, f.size, f.encoding, f.upload, ${sql.lit(referenced)}, f.version + 1, f.renew_time, f.data
    from former_states as f where ${where}
      and not exists (select 1 from states as s where s.namespace = f.namespace and s.digest = f.digest)
    returning octet_length(data) as bytes`.execute(db);
  return rows.reduce((sum, { bytes }) => sum + Number(bytes ?? 0), 0);
}

/**
 * Copies the states that steps and their contents name, apart from small states of steps, which are stored with the
 * steps, and inserts the references. References to states whose rows are missing are dropped: nothing can be read by
 * them. Returns the bytes of the copied states.
 */
export async function copyReferences<T>(
  db: Kysely<T>,
  ranges: readonly StepRange[],
  kept: readonly KeptReference[],
): Promise<number> {
  if (ranges.length === 0) return 0;
  const values = ranges.map(
    ({ tree, trajectory, first, next }) =>
      sql`(cast(${tree} as bigint), cast(${trajectory} as bigint), cast(${first} as bigint), cast(${next} as bigint))`,
  );
  const within = sql`r.tree = w.tree and r.trajectory = w.trajectory
    and r.step_number >= w.first_number and r.step_number < w.next_number`;
  const named = sql`with w (tree, trajectory, first_number, next_number) as (values ${sql.join(values)}), named as (
      select r.tree, r.trajectory, r.step_number, r.name, r.namespace, r.digest
        from w cross join former_step_states as r where ${within} and r.size >= ${sql.lit(Number(SMALL))}
      union all
      select r.tree, r.trajectory, r.step_number, '', r.namespace, r.digest
        from w cross join former_content_states as r where ${within})`;
  let bytes = await copyStates(
    db,
    true,
    sql<SqlBool>`(f.namespace, f.digest) in (${named} select namespace, digest from named)`,
  );
  await sql`${named} insert into state_refs (tree, trajectory, step_number, name, namespace, state)
    select n.tree, n.trajectory, n.step_number, n.name, n.namespace, s.key
    from named as n cross join states as s where s.namespace = n.namespace and s.digest = n.digest
    order by 1, 2, 3`.execute(db);
  for (const { tree, trajectory, step_number, name, namespace, digest } of kept) {
    bytes += await copyStates(db, true, sql<SqlBool>`f.namespace = ${namespace} and f.digest = ${digest}`);
    await sql`insert into state_refs (tree, trajectory, step_number, name, namespace, state)
      select ${tree}, ${trajectory}, ${step_number}, ${name}, s.namespace, s.key from states as s
      where s.namespace = ${namespace} and s.digest = ${digest}`.execute(db);
  }
  return bytes;
}

/**
 * Copies the next states that no step names. Small states that steps name are left out: their bytes are in the steps.
 */
export async function copyOtherStates<T>(db: Kysely<T>, at: ConversionRow): Promise<ConversionProgress | undefined> {
  const after = sql<SqlBool>`(f.namespace, f.digest) > (${at.state_namespace}, ${at.state_digest})`;
  const { rows } = await sql<{ namespace: string; digest: Uint8Array; bytes: bigint | number | null }>`
    select f.namespace, f.digest, octet_length(f.data) as bytes from former_states as f where ${after}
    order by f.namespace, f.digest limit ${sql.lit(ROWS)}`.execute(db);
  const next = firstWithin(rows);
  const last = next.at(-1);
  if (last === undefined) return undefined;
  await copyStates(
    db,
    false,
    sql<SqlBool>`${after} and (f.namespace, f.digest) <= (${last.namespace}, ${last.digest})
      and (f.size >= ${sql.lit(Number(SMALL))} or not f.referenced)`,
  );
  const done = at.done_states + BigInt(next.length);
  await sql`update conversion set state_namespace = ${last.namespace}, state_digest = ${last.digest},
    done_states = ${done}`.execute(db);
  return { rows: 'states', done, total: at.total_states };
}

/** SQLite only: on Postgres, the table keeps its rows. */
export async function copyChunks<T>(db: Kysely<T>, at: ConversionRow): Promise<ConversionProgress | undefined> {
  const { rows } = await sql<{ key: bigint; bytes: bigint | number | null }>`
    select rowid as key, octet_length(data) as bytes from former_chunks where rowid > ${at.last_chunk}
    order by rowid limit ${sql.lit(ROWS)}`.execute(db);
  const next = firstWithin(rows);
  const last = next.at(-1);
  if (last === undefined) return undefined;
  await sql`insert into state_chunks (upload, ordinal, namespace, digest, size, encoding, data)
    select upload, ordinal, namespace, digest, size, encoding, data from former_chunks
    where rowid > ${at.last_chunk} and rowid <= ${last.key} order by rowid`.execute(db);
  const done = at.done_chunks + BigInt(next.length);
  await sql`update conversion set last_chunk = ${last.key}, done_chunks = ${done}`.execute(db);
  return { rows: 'chunks', done, total: at.total_chunks };
}

/** Returns the first rows, as many as fit into one transaction, at least one. */
function firstWithin<Row extends { readonly bytes: bigint | number | null }>(rows: readonly Row[]): readonly Row[] {
  let bytes = 0;
  const end = rows.findIndex((row, i) => {
    bytes += Number(row.bytes ?? 0);
    return i > 0 && bytes > BYTES;
  });
  return end === -1 ? rows : rows.slice(0, end);
}
