import { type Kysely, type RawBuilder, sql } from 'kysely';
import { AnabranchError } from '../../../domain/errors.ts';
import type { StateRef } from '../../../domain/step.ts';
import { writeSmallStates } from '../../../domain/step_codec/small_states.ts';
import { compareText } from '../../../domain/text_order.ts';
import { tupleKey } from '../../../domain/tuple_key.ts';
import { decodeBytes, verified } from '../../sql/state/bytes.ts';
import { StepRuns } from '../../sql/step/step_runs.ts';
import { readDigest } from '../../sql/values.ts';

/** Small states have fewer bytes. */
export const SMALL = 4096n;
/** References that one statement reads. */
const PAGE = 500;

interface ReferenceRow {
  readonly tree: bigint;
  readonly trajectory: bigint;
  readonly step_number: bigint;
  readonly name: string;
  readonly namespace: string;
  readonly digest: Uint8Array;
  readonly media_type: string;
  readonly size: bigint;
  /** Of the segment that has the step. */
  readonly first_step_number: bigint;
  readonly attached: boolean | bigint;
}

interface Reference extends ReferenceRow {
  /** Undefined if the state keeps its row: it is not small, or its row is missing or damaged. */
  readonly data: Uint8Array | undefined;
}

/**
 * Writes the names of all states into the segments of their steps, and moves the bytes of small states there. The rows
 * of these states become unreferenced; the collector keeps those that contents name, and deletes the others. Holds the
 * states of one segment.
 */
export async function moveSmallStates<T>(db: Kysely<T>): Promise<void> {
  const kept: Reference[] = [];
  let open: Reference[] = [];
  for await (const reference of references(db)) {
    if (reference.data === undefined && reference.size < SMALL) kept.push(reference);
    const [first] = open;
    if (first !== undefined && !isSameSegment(first, reference)) {
      await writeSegment(db, open);
      open = [];
    }
    open.push(reference);
  }
  if (open.length > 0) await writeSegment(db, open);
  await sql`delete from step_states where size < ${SMALL}`.execute(db);
  for (const row of kept) {
    await sql`insert into step_states (tree, trajectory, step_number, name, namespace, digest, media_type, size)
      values (${row.tree}, ${row.trajectory}, ${row.step_number}, ${row.name}, ${row.namespace}, ${row.digest},
        ${row.media_type}, ${row.size})`.execute(db);
  }
  await sql`update states set referenced = not referenced, version = version + 1 where size < ${SMALL} and referenced`.execute(
    db,
  );
}

function isSameSegment(one: ReferenceRow, other: ReferenceRow): boolean {
  return (
    one.tree === other.tree && one.trajectory === other.trajectory && one.first_step_number === other.first_step_number
  );
}

async function* references<T>(db: Kysely<T>): AsyncGenerator<Reference, void, undefined> {
  let after: RawBuilder<unknown> = sql``;
  for (;;) {
    const { rows } = await sql<ReferenceRow>`select s.tree, s.trajectory, s.step_number, s.name, s.namespace, s.digest,
      s.media_type, s.size,
      (select g.first_step_number from segments as g
        where g.tree = s.tree and g.trajectory = s.trajectory and g.first_step_number <= s.step_number
        order by g.first_step_number desc limit 1) as first_step_number,
      exists (select 1 from attached_states as a where a.tree = s.tree and a.trajectory = s.trajectory
        and a.step_number = s.step_number and a.name = s.name) as attached
      from step_states as s ${after} order by s.tree, s.trajectory, s.step_number, s.name limit ${PAGE}`.execute(db);
    const last = rows.at(-1);
    if (last === undefined) return;
    const small = await readSmall(db, 'states', rows);
    for (const row of rows) yield { ...row, data: small.get(tupleKey(row.namespace, readDigest(row.digest))) };
    after = sql`where (s.tree, s.trajectory, s.step_number, s.name) > (cast(${last.tree} as bigint),
      cast(${last.trajectory} as bigint), cast(${last.step_number} as bigint), ${last.name})`;
  }
}

interface StateRow {
  readonly digest: Uint8Array;
  readonly size: bigint;
  readonly encoding: string;
  readonly data: Uint8Array | null;
}

/** Returns the bytes of the small states that rows refer to, without missing and damaged ones. */
export async function readSmall<T>(
  db: Kysely<T>,
  table: 'states' | 'former_states',
  rows: readonly Pick<ReferenceRow, 'namespace' | 'digest' | 'size'>[],
): Promise<Map<string, Uint8Array>> {
  const found = new Map<string, Uint8Array>();
  const small = rows.filter(({ size }) => size < SMALL);
  for (const [namespace, here] of Map.groupBy(small, (row) => row.namespace)) {
    const digests = new Map(here.map(({ digest }) => [readDigest(digest), digest]));
    const states = await sql<StateRow>`select digest, size, encoding, data from ${sql.table(table)}
      where namespace = ${namespace} and digest in (${sql.join([...digests.values()])})`.execute(db);
    for (const state of states.rows) {
      const data = await bytesOf(state);
      if (data !== undefined) found.set(tupleKey(namespace, readDigest(state.digest)), data);
    }
  }
  return found;
}

async function bytesOf({ digest, size, encoding, data }: StateRow): Promise<Uint8Array | undefined> {
  if (data === null) return undefined;
  const name = readDigest(digest);
  try {
    return verified(await decodeBytes({ encoding, data }, Number(size), name), name);
  } catch (error) {
    if (error instanceof AnabranchError && error.reason === 'STATE_CORRUPT') return undefined;
    throw error;
  }
}

async function writeSegment<T>(db: Kysely<T>, references: readonly Reference[]): Promise<void> {
  const { tree, trajectory, first_step_number: first } = references[0]!;
  const names = new StepRuns();
  const sent: StateRef[] = [];
  for (const [number, ofStep] of Map.groupBy(references, ({ step_number }) => step_number)) {
    for (const reference of ofStep.toSorted((a, b) => compareText(a.name, b.name))) {
      names.add(Number(number - first), reference.name);
      if (Number(reference.attached) === 0) sent.push(stateOf(reference));
      else if (reference.data !== undefined) await fillAttached(db, reference);
    }
  }
  await sql`update segments set state_names = ${names.toJson()}, states = ${writeSmallStates(sent)}
    where tree = ${tree} and trajectory = ${trajectory} and first_step_number = ${first}`.execute(db);
}

function stateOf({ name, digest, media_type: mediaType, size, data }: Reference): StateRef {
  const state = { name, digest: readDigest(digest), mediaType, size: Number(size) };
  return data === undefined ? state : { ...state, data };
}

async function fillAttached<T>(db: Kysely<T>, { tree, trajectory, step_number, name, data }: Reference): Promise<void> {
  await sql`update attached_states set data = ${data} where tree = ${tree} and trajectory = ${trajectory}
    and step_number = ${step_number} and name = ${name}`.execute(db);
}
