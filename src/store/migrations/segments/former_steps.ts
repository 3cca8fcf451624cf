import { type Kysely, sql } from 'kysely';
import { parseInstant } from '../../../domain/instant.ts';
import type { StateRef, Step } from '../../../domain/step.ts';
import { stepDigest } from '../../../domain/step_digest.ts';
import { compareText } from '../../../domain/text_order.ts';
import { tupleKey } from '../../../domain/tuple_key.ts';
import { isSet, readDigest, readMetrics, readOptionalReal } from '../../sql/values.ts';
import { readSmall, SMALL } from '../small_states/move_small_states.ts';
import { readActions, readObservations } from './former_content.ts';
import type { KeptReference } from './former_states.ts';

/** A row of the former table `steps`. */
export interface FormerStep {
  readonly trajectory: bigint;
  /** As the client sent it: without the states that were attached later. Small states have their bytes. */
  readonly step: Step;
  readonly attached: readonly FormerState[];
  /** References to small states that are missing or damaged: they keep their rows. */
  readonly kept: readonly KeptReference[];
  readonly commitTime: string;
  readonly writerEpoch: bigint;
}

interface StepRow {
  readonly tree: bigint;
  readonly trajectory: bigint;
  readonly step_number: bigint;
  readonly reward: number | string | null;
  readonly terminated: boolean | bigint;
  readonly truncated: boolean | bigint;
  readonly writer_epoch: bigint;
  readonly commit_time: string;
  readonly start_time: string | null;
  readonly end_time: string | null;
  readonly content_digest: Uint8Array;
  readonly metrics: string;
  readonly actions: string;
  readonly observations: string;
  readonly info_json: string;
  readonly metadata_json: string;
}

interface StateRow extends KeptReference {
  readonly media_type: string;
  readonly size: bigint;
}

/** A state of a step. A small one has its bytes, unless they are missing or damaged. */
export interface FormerState extends StateRef {
  readonly row: StateRow;
}

/**
 * Steps that one statement reads at most. Many keys of a statement are joined by `cross join`, which SQLite does not
 * reorder: it would scan the table, and look the rows up in the keys.
 */
export const PAGE_STEPS = 500;
/** Bytes that one statement reads at most, unless one step is larger. */
export const PAGE_BYTES = 8 * 1024 * 1024;

export interface FormerTrajectory {
  readonly tree: bigint;
  readonly key: bigint;
}

/** Returns the next own steps of a trajectory. */
export async function readFormerSteps<T>(
  db: Kysely<T>,
  { tree, key }: FormerTrajectory,
  next: bigint,
): Promise<FormerStep[]> {
  const own = sql`tree = ${tree} and trajectory = ${key}`;
  const { rows } = await sql<StepRow>`select * from former_steps
    where ${own} and step_number >= ${next} and (step_number = ${next}
      or byte_sum <= coalesce((select byte_sum from former_steps where ${own} and step_number = ${next}), 0) + ${BigInt(PAGE_BYTES)})
    order by step_number limit ${sql.lit(PAGE_STEPS)}`.execute(db);
  return readRows(db, rows);
}

/** Returns all own steps of trajectories that have few, by trajectory. */
export async function readFewSteps<T>(
  db: Kysely<T>,
  trajectories: readonly FormerTrajectory[],
): Promise<Map<bigint, FormerStep[]>> {
  const keys = trajectories.map(({ tree, key }) => sql`(cast(${tree} as bigint), cast(${key} as bigint))`);
  const { rows } = await sql<StepRow>`with w (tree, key) as (values ${sql.join(keys)})
    select s.* from w cross join former_steps as s where s.tree = w.tree and s.trajectory = w.key
    order by s.trajectory, s.step_number`.execute(db);
  return Map.groupBy(await readRows(db, rows), ({ trajectory }) => trajectory);
}

async function readRows<T>(db: Kysely<T>, rows: readonly StepRow[]): Promise<FormerStep[]> {
  const stateRows = await statesOf(db, rows);
  const small = await readSmall(db, 'former_states', stateRows);
  const states = Map.groupBy(stateRows, ({ trajectory, step_number }) => tupleKey(trajectory, step_number));
  return rows.map((row): FormerStep => {
    const { trajectory, step_number } = row;
    const all = (states.get(tupleKey(trajectory, step_number)) ?? []).map((each) => readState(each, small));
    const kept = all.filter(({ row: { size }, data }) => size < SMALL && data === undefined);
    return {
      ...{ trajectory, kept: kept.map((state) => state.row), ...readRow(row, all) },
      ...{ commitTime: row.commit_time, writerEpoch: row.writer_epoch },
    };
  });
}

async function statesOf<T>(db: Kysely<T>, rows: readonly StepRow[]): Promise<readonly StateRow[]> {
  if (rows.length === 0) return [];
  const keys = rows.map(
    ({ tree, trajectory, step_number }) =>
      sql`(cast(${tree} as bigint), cast(${trajectory} as bigint), cast(${step_number} as bigint))`,
  );
  const found = await sql<StateRow>`with w (tree, trajectory, step_number) as (values ${sql.join(keys)})
    select s.tree, s.trajectory, s.step_number, s.name, s.namespace, s.digest, s.media_type, s.size from w
    cross join former_step_states as s where s.tree = w.tree and s.trajectory = w.trajectory
      and s.step_number = w.step_number`.execute(db);
  return found.rows;
}

function readState(row: StateRow, small: ReadonlyMap<string, Uint8Array>): FormerState {
  const digest = readDigest(row.digest);
  const state = { name: row.name, digest, mediaType: row.media_type, size: Number(row.size), row };
  const data = row.size < SMALL ? small.get(tupleKey(row.namespace, digest)) : undefined;
  return data === undefined ? state : { ...state, data };
}

function readRow(row: StepRow, all: FormerState[]): Pick<FormerStep, 'step' | 'attached'> {
  const whole: Step = {
    stepNumber: row.step_number,
    actions: readActions(row.actions),
    observations: readObservations(row.observations),
    reward: readOptionalReal(row.reward),
    terminated: isSet(row.terminated),
    truncated: isSet(row.truncated),
    infoJson: row.info_json,
    metadataJson: row.metadata_json,
    metrics: readMetrics(row.metrics),
    startTime: row.start_time === null ? undefined : parseInstant(row.start_time),
    endTime: row.end_time === null ? undefined : parseInstant(row.end_time),
    states: all.sort((a, b) => compareText(a.name, b.name)),
    labels: new Map(),
  };
  const digest = readDigest(row.content_digest);
  for (const attached of subsets(all)) {
    const step = { ...whole, states: all.filter((state) => !attached.includes(state)) };
    if (stepDigest(step, compareCodeUnits) === digest) return { step, attached };
  }
  return { step: whole, attached: [] };
}

/** The order of metrics in former digests. */
export function compareCodeUnits(a: string, b: string): number {
  return a < b ? -1 : 1;
}

/**
 * Former rows do not tell which states were attached, but their digest covers only the others. Returns subsets, the
 * most likely first: none, all, then the smallest. At most `MOST_SUBSETS`: the digest of a step that came as JSON with
 * log-probabilities of many digits matches none, because they were stored as floats. All its states then count as sent.
 */
function* subsets<Item>(items: readonly Item[]): Generator<readonly Item[]> {
  yield [];
  if (items.length === 0) return;
  yield items;
  let left = MOST_SUBSETS;
  for (let size = 1; size < items.length; size += 1) {
    for (const subset of subsetsOf(items, size)) {
      if (left === 0) return;
      left -= 1;
      yield subset;
    }
  }
}

const MOST_SUBSETS = 1000;

function* subsetsOf<Item>(items: readonly Item[], size: number): Generator<Item[]> {
  if (size === 0) {
    yield [];
    return;
  }
  for (const [i, item] of items.entries()) {
    for (const rest of subsetsOf(items.slice(i + 1), size - 1)) yield [item, ...rest];
  }
}
