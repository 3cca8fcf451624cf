import { type RawBuilder, sql } from 'kysely';
import { stateCorrupt } from '../../../../domain/errors.ts';
import { parseInstant } from '../../../../domain/instant.ts';
import { clipRanges, type OwnedRange } from '../../../../domain/lineage.ts';
import { stateDigest } from '../../../../domain/state_digest.ts';
import { isKept } from '../../../../domain/step.ts';
import type { OwnedState, StepPlace } from '../../../contract/step.ts';
import type { Engine } from '../../kit/engine.ts';
import { nextIteration } from '../../kit/reading/slots.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { readDigest } from '../../kit/values.ts';
import { namedSegments } from '../read/named_segments.ts';
import { segmentsOver } from '../read/read_stored.ts';
import type { Segment } from '../read/segment.ts';
import { readRuns, runBegin, runEnd, runName, runsIn } from '../read/step_runs.ts';
import { MANY_STEPS, searchedPlace, searchedSegments } from '../read/steps.ts';
import { bytesOf, type StoredStates } from '../read/stored_body.ts';
import { lineageTable, MOST_RANGES } from '../trajectory/range_table.ts';
import { smallStatesIn } from './named_states.ts';

/** Condition of the partial index of the segments with states, which has those with `body_bytes`. */
export const HAS_STATES = sql`s.state_names <> '[]'`;

const STATE_NAMES = sql<string>`s.state_names`;

/** Whether the segment `s` has a step in the range of `p` that has all names, or any state if there are none. */
export function hasStepWith(engine: Engine, names: readonly string[]): RawBuilder<unknown> {
  const [lo, hi] = [sql`p.lo - s.first_step_number`, sql`p.hi - s.first_step_number`];
  // The last step that has all names is the last one of a run, or of the range.
  const last = sql`(case when ${runEnd('r')} < ${hi} then ${runEnd('r')} else ${hi} end) - 1`;
  const others = names.length < 2 ? [] : names;
  const conditions = [
    sql`${runEnd('r')} > ${lo} and ${runBegin('r')} < ${hi}`,
    ...(names.length === 0 ? [] : [sql`${runName('r')} in (${sql.join(names)})`]),
    ...others.map(
      (name) => sql`exists (select 1 from ${runsIn(engine, STATE_NAMES, 'b')}
        where ${runName('b')} = ${name} and ${runBegin('b')} <= ${last} and ${runEnd('b')} > ${last})`,
    ),
  ];
  return sql`exists (select 1 from ${runsIn(engine, STATE_NAMES, 'r')} where ${sql.join(conditions, sql` and `)})`;
}

interface WantedStates {
  readonly name: string;
  readonly from: bigint;
  readonly limit: number;
}

export async function listStepStates(
  scope: ReadScope,
  tree: bigint,
  lineage: readonly OwnedRange[],
  { name, from, limit }: WantedStates,
): Promise<OwnedState[]> {
  const end = lineage.at(-1)?.to ?? 0n;
  const found: OwnedState[] = [];
  let most = FEWEST_ROWS;
  // States may be rare. Windows of step numbers grow until the page is full, so that no statement sorts a whole
  // history.
  let width = BigInt(limit);
  for (let begin = from; begin < end && found.length < limit; ) {
    if (begin > from) await nextIteration();
    const whole = clipRanges(lineage, begin, begin + width);
    const window = whole.slice(0, MOST_RANGES);
    const windowEnd = window.length < whole.length ? window.at(-1)!.to : begin + width;
    if (window.length === 0) return found;
    const { rows, states } = await readWithAttached(scope, tree, window, name, most);
    found.push(...states);
    const last = rows.at(-1);
    if (last === undefined || rows.length < most) {
      begin = windowEnd;
      width *= 4n;
    } else begin = last.next_step_number < last.hi ? last.next_step_number : last.hi;
    const bytes = rows.reduce((sum, row) => sum + bytesOf(row) + Number(row.states_bytes ?? row.states.length), 0);
    most = bytes < READ_BYTES ? Math.min(most * 2, limit) : FEWEST_ROWS;
  }
  found.sort((a, b) => (a.stepNumber < b.stepNumber ? -1 : 1));
  return found.slice(0, limit);
}

/**
 * Segments that one statement reads at least, if there are as many. More while they are small: the small states
 * of one step can have almost 1 MiB.
 */
const FEWEST_ROWS = 4;
const READ_BYTES = 256 * 1024;

/** Reads again if a merge has written attached states into steps between the two statements. */
async function readWithAttached(
  scope: ReadScope,
  tree: bigint,
  window: readonly OwnedRange[],
  name: string,
  most: number,
): Promise<{ readonly rows: readonly NamedRow[]; readonly states: readonly OwnedState[] }> {
  for (let before: readonly NamedRow[] | undefined; ; ) {
    const rows = await readNamed(scope, tree, window, name, most);
    if (rows.reduce((steps, { lo, hi }) => steps + (hi - lo), 0n) >= MANY_STEPS)
      await scope.engine.slots.take(scope.namespace);
    const sent = rows.flatMap((row) => statesIn(row, name));
    const named = runsOf(rows, name);
    const count = named.reduce((sum, { from, to }) => sum + Number(to - from), 0);
    const attached = count <= sent.length ? [] : await readAttached(scope, tree, named, name);
    const isSame = ({ checksum }: NamedRow, i: number) => checksum === before?.[i]?.checksum;
    // A second reading of the same segments: states are missing.
    if (sent.length + attached.length >= count || (rows.length === before?.length && rows.every(isSame))) {
      return { rows, states: [...sent, ...attached] };
    }
    before = rows;
  }
}

interface NamedRow extends Segment, StoredStates {
  readonly trajectory: bigint;
  readonly id: string;
  /** The part [lo, hi) that the lineage has. */
  readonly lo: bigint;
  readonly hi: bigint;
  readonly state_names: string;
}

/**
 * Returns the first segments that have a state of the name, in order of step. They are found by the index of
 * names, and those that it lacks by their own names.
 */
async function readNamed(
  { engine, namespace }: ReadScope,
  tree: bigint,
  window: readonly OwnedRange[],
  name: string,
  most: number,
): Promise<readonly NamedRow[]> {
  const [stored, trajectories] = [engine.sql.table('segments'), engine.sql.table('trajectories')];
  // All of the key of a segment comes from one table: Postgres could take a part of it from another one.
  const { rows } = await sql<NamedRow>`
    with ${lineageTable(engine, tree, window)}, ${searchedSegments(engine)},
    ${namedSegments(engine, [{ column: 'state_names', names: [name] }], searchedPlace(engine))},
    d as materialized (
      select k.tree, k.trajectory, k.first_step_number, k.lo, k.hi, cast(o.id as text) as id
      from k cross join ${trajectories} as o
      where o.tree = k.tree and o.key = k.trajectory and o.namespace = ${namespace})
    select s.first_step_number, s.next_step_number, s.writer_epoch, s.commit_time, s.commits, s.reward_sum,
      s.checksum, s.encoding, s.body_bytes, s.body,
      s.trajectory, p.id, p.lo, p.hi, s.state_names, s.states, s.states_bytes
    from d as p cross join ${stored} as s
    where s.tree = p.tree and s.trajectory = p.trajectory and s.first_step_number = p.first_step_number
      and ${hasStepWith(engine, [name])}
    order by s.first_step_number
    limit ${most}`.execute(engine.db);
  return rows;
}

function statesIn(row: NamedRow, name: string): OwnedState[] {
  const owner = { key: row.trajectory, id: row.id };
  const found: OwnedState[] = [];
  for (const { stepNumber, states } of smallStatesIn(row, row.lo, row.hi)) {
    const state = states.find((each) => each.name === name && isKept(each));
    if (state !== undefined) found.push({ owner, stepNumber, state });
  }
  return found;
}

/** Own steps [from, to) of a trajectory that have a state of the name. */
interface NamedRun {
  readonly trajectory: bigint;
  readonly id: string;
  readonly from: bigint;
  readonly to: bigint;
}

function runsOf(rows: readonly NamedRow[], name: string): NamedRun[] {
  return rows.flatMap(({ lo, hi, first_step_number: first, state_names, trajectory, id }) =>
    readRuns(state_names)
      .filter((run) => run[0] === name)
      .map(([, from, to]) => {
        const [begin, end] = [first + BigInt(from), first + BigInt(to)];
        return { trajectory, id, from: begin > lo ? begin : lo, to: end < hi ? end : hi };
      })
      .filter(({ from, to }) => from < to),
  );
}

/** Returns the states of the name that were attached to these steps and have rows of `attached_states`. */
async function readAttached(
  { engine, namespace }: ReadScope,
  tree: bigint,
  named: readonly NamedRun[],
  name: string,
): Promise<OwnedState[]> {
  const ranges = [...Map.groupBy(named, ({ trajectory }) => trajectory)].map(([key, runs]): OwnedRange => {
    const from = runs.reduce((least, run) => (run.from < least ? run.from : least), runs[0]!.from);
    const to = runs.reduce((most, run) => (run.to > most ? run.to : most), 0n);
    return { key, from, to };
  });
  const owners = new Map(named.map(({ trajectory, id }) => [trajectory, id]));
  const found = await sql<AttachedRow>`
    with ${lineageTable(engine, tree, ranges)}
    select a.trajectory, a.step_number, a.digest, a.media_type, a.size, a.data, a.attach_time
    from g cross join ${engine.sql.table('attached_states')} as a
    where a.tree = g.tree and a.trajectory = g.key and a.step_number >= g.lo and a.step_number < g.hi
      and a.name = ${name} and a.namespace = ${namespace} and a.pruned_time is null`.execute(engine.db);
  return found.rows.map(
    ({ trajectory, step_number: stepNumber, digest, media_type: mediaType, size, data, attach_time }) => {
      const state = {
        name,
        digest: readDigest(digest),
        mediaType,
        size: Number(size),
        attachTime: parseInstant(attach_time),
        ...(data === null ? {} : { data }),
      };
      return { owner: { key: trajectory, id: owners.get(trajectory)! }, stepNumber, state };
    },
  );
}

interface AttachedRow {
  readonly trajectory: bigint;
  readonly step_number: bigint;
  readonly digest: Uint8Array;
  readonly media_type: string;
  readonly size: bigint;
  readonly data: Uint8Array | null;
  readonly attach_time: string;
}

export async function readSmallStates(
  scope: ReadScope,
  place: StepPlace,
  names: readonly string[],
): Promise<ReadonlyMap<string, Uint8Array>> {
  const found = new Map<string, Uint8Array>();
  const sent = await addSmallStates(found, scope, place, names);
  const others = names.filter((name) => !sent.has(name));
  if (others.length === 0) return found;
  const attached = await scope.db
    .selectFrom('attached_states')
    .select(['name', 'digest', 'data'])
    .where('tree', '=', place.tree)
    .where('trajectory', '=', place.owner)
    .where('step_number', '=', place.stepNumber)
    .where('name', 'in', others)
    .where('namespace', '=', scope.namespace)
    .execute();
  for (const { name, digest, data } of attached) addVerified(found, { name, digest: readDigest(digest), data });
  // A merge may have written a state into its step in between.
  const missing = others.filter((name) => attached.every((row) => row.name !== name));
  if (missing.length > 0) await addSmallStates(found, scope, place, missing);
  return found;
}

/** Adds small states that are stored with their step. Returns the names of all states that its segment has. */
async function addSmallStates(
  found: Map<string, Uint8Array>,
  { engine, db, namespace }: ReadScope,
  { tree, owner, stepNumber }: StepPlace,
  names: readonly string[],
): Promise<ReadonlySet<string>> {
  const segment = await segmentsOver({ engine, db }, { tree, key: owner }, stepNumber, stepNumber + 1n)
    .select(['s.states', 's.states_bytes'])
    .where('s.namespace', '=', namespace)
    .executeTakeFirst();
  const steps = segment === undefined ? [] : smallStatesIn(segment, stepNumber, stepNumber + 1n);
  const all = new Set<string>();
  for (const { states } of steps) {
    for (const state of states.filter(isKept)) {
      all.add(state.name);
      if (names.includes(state.name)) addVerified(found, state);
    }
  }
  return all;
}

/** S3. Errors: STATE_CORRUPT. */
function addVerified(
  found: Map<string, Uint8Array>,
  {
    name,
    digest,
    data,
  }: { readonly name: string; readonly digest: string; readonly data?: Uint8Array | null | undefined },
): void {
  if (data === undefined || data === null) return;
  if (stateDigest(data) !== digest) throw stateCorrupt(digest);
  found.set(name, data);
}
