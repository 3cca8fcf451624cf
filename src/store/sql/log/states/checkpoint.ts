import { type RawBuilder, sql } from 'kysely';
import { clipRanges, type OwnedRange } from '../../../../domain/lineage.ts';
import type { OwnedStep } from '../../../contract/step.ts';
import type { Engine } from '../../kit/engine.ts';
import { nextIteration } from '../../kit/reading/slots.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { indexedTo } from '../read/segment_lookup.ts';
import { lastWithStates, readRuns, stateEntry } from '../read/step_runs.ts';
import { readSteps, searchedSegments } from '../read/steps.ts';
import { lineageTable, MOST_RANGES } from '../trajectory/range_table.ts';
import { HAS_STATES, hasStepWith } from './step_states.ts';

/** Returns the last step up to a number that has states of all names, or any state if there are none. */
export async function findCheckpoint(
  scope: ReadScope,
  tree: bigint,
  lineage: readonly OwnedRange[],
  atOrBefore: bigint,
  names: readonly string[],
): Promise<OwnedStep | undefined> {
  const searched = clipRanges(lineage, 0n, atOrBefore + 1n);
  // From the leaf to the root, with few ranges first: a near checkpoint is found quickly, and a deep lineage needs
  // few statements.
  let end = searched.length;
  for (let count = 1; end > 0; count = Math.min(count * 4, MOST_RANGES)) {
    const piece = searched.slice(Math.max(end - count, 0), end);
    const number = await latestWith(scope.engine, tree, piece, names);
    if (number !== undefined) {
      const range = { from: number, to: number + 1n, maxSteps: 1, maxBytes: 0 };
      const [found] = await readSteps(scope, tree, lineage, range, 'FULL');
      return found;
    }
    end -= piece.length;
    if (end > 0) await nextIteration();
  }
  return undefined;
}

interface LatestRow {
  readonly lo: bigint;
  readonly hi: bigint;
  readonly first_step_number: bigint;
  readonly state_names: string;
}

/**
 * Finds the segment by the names of its states, and reads no contents. Each range of the lineage is searched from its
 * end: first the segments that indexes may lack, which merges keep few, then the index.
 */
async function latestWith(
  engine: Engine,
  tree: bigint,
  lineage: readonly OwnedRange[],
  names: readonly string[],
): Promise<bigint | undefined> {
  const isIndexed = sql`s.body_bytes is not null`;
  const indexed = names.length === 0 ? latestOf(engine, names, isIndexed) : latestNamed(engine, names);
  const others = sql`s.first_step_number >= ${indexedTo(engine, sql`p.tree`, sql`p.key`)}`;
  const latest = sql`coalesce(${latestOf(engine, names, others)}, ${indexed})`;
  const found = await sql<LatestRow>`
    with ${lineageTable(engine, tree, lineage)}, ${searchedSegments(engine)}, ${wantedNames(names)}
    f as materialized (select p.tree, p.key, p.lo, p.hi, ${latest} as first from p)
    select f.lo, f.hi, s.first_step_number, s.state_names from f cross join ${engine.sql.table('segments')} as s
    where s.tree = f.tree and s.trajectory = f.key and s.first_step_number = f.first
    order by s.first_step_number desc limit 1`.execute(engine.db);
  const [row] = found.rows;
  if (row === undefined) return undefined;
  const { lo, hi, first_step_number: first, state_names } = row;
  const last = lastWithStates(readRuns(state_names), names, Number(lo - first), Number(hi - first));
  return last === undefined ? undefined : first + BigInt(last);
}

/** The last segment of `p` that meets the condition and has a step with all names. */
function latestOf(engine: Engine, names: readonly string[], condition: RawBuilder<unknown>): RawBuilder<unknown> {
  return sql`(select s.first_step_number from ${engine.sql.table('segments')} as s
    where s.tree = p.tree and s.trajectory = p.key
      and ${condition}
      and s.first_step_number >= p.first and s.first_step_number < p.hi and ${HAS_STATES} and ${hasStepWith(engine, names)}
    order by s.first_step_number desc limit 1)`;
}

/** `w(name)`: the names in the index, if they are several. */
function wantedNames(names: readonly string[]): RawBuilder<unknown> {
  if (names.length < 2) return sql``;
  return sql`w(name) as (values ${sql.join(names.map((name) => sql`(cast(${stateEntry(name)} as text))`))}),`;
}

/**
 * The last segment of `p` in the index that has a step with all names. Of several names, the search goes through the
 * segments of the name whose last segment is the oldest, because that name is likely to be the rarest. Each is looked
 * up by its key: Postgres would join the rows of `exists` in any order.
 */
function latestNamed(engine: Engine, names: readonly string[]): RawBuilder<unknown> {
  const [index, stored] = [engine.sql.table('segment_names'), engine.sql.table('segments')];
  const rarest = sql`(select w.name from w order by (
      select m.first_step_number from ${index} as m
      where m.tree = p.tree and m.trajectory = p.key and m.name = w.name and m.first_step_number < p.hi
      order by m.first_step_number desc limit 1) nulls first limit 1)`;
  return sql`(select n.first_step_number from ${index} as n
    where n.tree = p.tree and n.trajectory = p.key and n.name = ${names.length === 1 ? stateEntry(names[0]!) : rarest}
      and n.first_step_number >= p.first and n.first_step_number < p.hi
      and (select 1 from ${stored} as s
        where s.tree = n.tree and s.trajectory = n.trajectory and s.first_step_number = n.first_step_number
          and ${hasStepWith(engine, names)}) = 1
    order by n.first_step_number desc limit 1)`;
}
