import { type Kysely, type RawBuilder, sql } from 'kysely';
import { type PackedStep, packStep } from '../../../domain/step_codec/packed_step.ts';
import { WireWriter } from '../../../domain/step_codec/wire_writer.ts';
import { NO_SUMS, type SegmentSums, type Sums, sumsOfBranch } from '../../sql/step/running_sums.ts';
import { type RestoredSteps, SegmentBuilder, StepEncoder } from '../../sql/step/segment.ts';
import { placeKey, sumsAt } from '../../sql/step/sums_at.ts';
import { SEGMENTS, type SegmentRow } from '../../sql/tables/steps.ts';
import { bindOptionalReal, readOptionalReal, readReal } from '../../sql/values.ts';
import type { ConversionProgress } from '../migration.ts';
import type { ConversionRow } from './conversion_table.ts';
import { copyReferences } from './former_states.ts';
import { type FormerStep, PAGE_BYTES, PAGE_STEPS, readFewSteps, readFormerSteps } from './former_steps.ts';

/** Trajectories of one transaction, and about its steps and the bytes of its states. */
const TRAJECTORIES = 500;
const STEPS = 10_000n;
const STATE_BYTES = 64 * 1024 * 1024;

/**
 * Converts the next rows of `former_steps` to rows of `segments`, in order of trajectories: parents come before their
 * branches. A long trajectory is converted in several calls.
 */
export async function convertSteps<T>(db: Kysely<T>, at: ConversionRow): Promise<ConversionProgress | undefined> {
  const after = sql.raw(at.next_step_number === null ? '>' : '>=');
  const { rows } =
    await sql<TrajectoryRow>`select tree, key, namespace, parent, branch_point, next_step_number, byte_sum, depth
    from trajectories where (depth, key) ${after} (${at.depth}, ${at.key})
    order by depth, key limit ${sql.lit(TRAJECTORIES)}`.execute(db);
  if (rows.length === 0) return undefined;
  let [done, stateBytes, next, last] = [0n, 0, at.next_step_number, rows[0]!];
  for (const batch of batchesOf(rows)) {
    if (done >= STEPS || stateBytes >= STATE_BYTES) break;
    last = batch.at(-1)!;
    if (isLong(last)) {
      do {
        const from: bigint = next ?? beginOf(last);
        const page = await convertPage(db, last, from);
        next = page.next;
        stateBytes += page.stateBytes;
        done += (next ?? last.next_step_number) - from;
      } while (next !== null && done < STEPS && stateBytes < STATE_BYTES);
    } else {
      stateBytes += await convert(db, batch);
      for (const row of batch) done += row.next_step_number - beginOf(row);
    }
  }
  const doneSteps = at.done_steps + done;
  await sql`update conversion set depth = ${last.depth}, key = ${last.key}, next_step_number = ${next},
    done_steps = ${doneSteps}`.execute(db);
  return { rows: 'steps', done: doneSteps, total: at.total_steps };
}

function beginOf({ branch_point: point }: Pick<TrajectoryRow, 'branch_point'>): bigint {
  return point === null ? 0n : point + 1n;
}

interface TrajectoryRow {
  readonly tree: bigint;
  readonly key: bigint;
  readonly namespace: string;
  readonly parent: bigint | null;
  readonly branch_point: bigint | null;
  readonly next_step_number: bigint;
  readonly byte_sum: bigint;
  readonly depth: bigint;
}

/** Rows and bytes of one insert. */
const INSERTED_ROWS = 100;
const INSERTED_BYTES = 1024 * 1024;

/** Trajectories with few steps of few bytes are converted together. */
function* batchesOf(rows: readonly TrajectoryRow[]): Generator<TrajectoryRow[]> {
  let batch: TrajectoryRow[] = [];
  let steps = 0;
  let bytes = 0;
  for (const row of rows) {
    const own = sizeOf(row);
    if (batch.length > 0 && (steps + own.steps > PAGE_STEPS || bytes + own.bytes > PAGE_BYTES)) {
      yield batch;
      [batch, steps, bytes] = [[], 0, 0];
    }
    batch.push(row);
    steps += own.steps;
    bytes += own.bytes;
  }
  if (batch.length > 0) yield batch;
}

/** Such a trajectory is a batch of its own. */
function isLong(row: TrajectoryRow): boolean {
  const { steps, bytes } = sizeOf(row);
  return steps > PAGE_STEPS || bytes > PAGE_BYTES;
}

function sizeOf(row: TrajectoryRow): { readonly steps: number; readonly bytes: number } {
  const steps = Number(row.next_step_number - beginOf(row));
  // Of the bytes along the lineage, as many are its own as of the steps.
  const bytes = row.next_step_number === 0n ? 0 : (steps / Number(row.next_step_number)) * Number(row.byte_sum);
  return { steps, bytes };
}

/** Returns the bytes of the states that were copied. */
async function convert<T>(db: Kysely<T>, batch: readonly TrajectoryRow[]): Promise<number> {
  const segments = new Segments(db, batch, await sumsOfParents(db, batch));
  const few = await readFewSteps(db, batch);
  for (const { key } of batch) for (const step of few.get(key) ?? []) await segments.add(step);
  await segments.finish();
  const ranges = batch.map((row) => ({
    ...{ tree: row.tree, trajectory: row.key, first: beginOf(row), next: row.next_step_number },
  }));
  const kept = [...few.values()].flatMap((steps) => steps.flatMap((step) => step.kept));
  return copyReferences(db, ranges, kept);
}

/**
 * Converts the next steps of a long trajectory. Returns the number after them, or null if they were the last ones, and
 * the bytes of the states that were copied.
 */
async function convertPage<T>(db: Kysely<T>, row: TrajectoryRow, from: bigint) {
  const steps = await readFormerSteps(db, row, from);
  const before = from === beginOf(row) ? undefined : await sumsBefore(db, row, from);
  const segments = new Segments(db, [row], await sumsOfParents(db, [row]), before);
  for (const step of steps) await segments.add(step);
  await segments.finish();
  const last = steps.at(-1);
  const next = last === undefined ? row.next_step_number : last.step.stepNumber + 1n;
  const range = { tree: row.tree, trajectory: row.key, first: from, next };
  const stateBytes = await copyReferences(
    db,
    [range],
    steps.flatMap((step) => step.kept),
  );
  return { next: next < row.next_step_number ? next : null, stateBytes };
}

/** Returns the sums of a trajectory whose steps before this number are converted. */
async function sumsBefore<T>(db: Kysely<T>, row: TrajectoryRow, from: bigint): Promise<Sums> {
  const place = { tree: row.tree, owner: row.key, stepNumber: from - 1n };
  const sums = (await sumsOf(db, [place])).get(placeKey(place)) ?? NO_SUMS;
  const { rows } = await sql<OwnSums>`select timed_turns, turn_seconds, min_reward, max_reward
    from trajectories where tree = ${row.tree} and key = ${row.key}`.execute(db);
  const own = rows[0]!;
  return {
    ...sums,
    minReward: readOptionalReal(own.min_reward),
    maxReward: readOptionalReal(own.max_reward),
    timedTurns: own.timed_turns,
    turnSeconds: readReal(own.turn_seconds),
  };
}

interface OwnSums {
  readonly timed_turns: bigint;
  readonly turn_seconds: number | string;
  readonly min_reward: number | string | null;
  readonly max_reward: number | string | null;
}

function sumsOf<T>(db: Kysely<T>, places: Parameters<typeof sumsAt>[1]): ReturnType<typeof sumsAt> {
  return sumsAt({ engine: { table: (name) => sql.table(name) }, db }, places);
}

/** Returns the sums at the branch points that are in trajectories of earlier batches. */
async function sumsOfParents<T>(db: Kysely<T>, batch: readonly TrajectoryRow[]): Promise<ReadonlyMap<string, Sums>> {
  const here = new Set(batch.map(({ key }) => key));
  const places = batch.flatMap(({ tree, parent, branch_point: stepNumber }) =>
    parent === null || stepNumber === null || here.has(parent) ? [] : [{ tree, owner: parent, stepNumber }],
  );
  return sumsOf(db, places);
}

/** Collects the segments of a batch of trajectories. Each trajectory's steps come in order, parents first. */
class Segments<T> {
  readonly #db: Kysely<T>;
  readonly #batch: ReadonlyMap<bigint, TrajectoryRow>;
  readonly #parents: ReadonlyMap<string, Sums>;
  readonly #before: Sums | undefined;
  readonly #out = new WireWriter(4096);
  readonly #encoder = new StepEncoder();
  /** Trajectories of this batch that have branches in it. */
  readonly #hasBranch: ReadonlySet<bigint>;
  /** By trajectory, the sums after its last step, and the segments that sums of branches are computed from. */
  readonly #done = new Map<bigint, { readonly segments: SegmentSums[]; sums: Sums }>();
  #open: { readonly segment: SegmentBuilder; readonly trajectory: bigint; readonly first: FormerStep } | undefined;
  /** By number, the attached states of the steps of the open segment. */
  readonly #attached = new Map<bigint, FormerStep['attached']>();
  #rows: SegmentRow[] = [];
  #bytes = 0;

  /** `before`: the sums at the first step of the only trajectory, if it is not its first own step. */
  constructor(db: Kysely<T>, batch: readonly TrajectoryRow[], parents: ReadonlyMap<string, Sums>, before?: Sums) {
    this.#db = db;
    this.#before = before;
    this.#batch = new Map(batch.map((row) => [row.key, row]));
    this.#hasBranch = new Set(batch.flatMap(({ parent }) => (parent === null ? [] : [parent])));
    this.#parents = parents;
  }

  async add(former: FormerStep): Promise<void> {
    const { trajectory, attached } = former;
    const step = packStep(this.#out, former.step);
    const stored = this.#encoder.encode(step, NO_SIZES);
    if (!this.#fits(former, step, stored)) await this.#begin(trajectory, former);
    this.#attached.set(step.stepNumber, attached);
    this.#open?.segment.add(step, stored);
    for (const state of attached) await insertAttached(this.#db, state);
  }

  /** A row has steps of one trajectory and one commit. */
  #fits({ trajectory, commitTime, writerEpoch }: FormerStep, step: PackedStep, stored: Uint8Array): boolean {
    if (this.#open === undefined || this.#open.trajectory !== trajectory) return false;
    const { first, segment } = this.#open;
    return first.commitTime === commitTime && first.writerEpoch === writerEpoch && segment.hasRoomFor(step, stored);
  }

  async #begin(trajectory: bigint, first: FormerStep): Promise<void> {
    await this.#close();
    const row = this.#batch.get(trajectory)!;
    const sums = this.#done.get(trajectory)?.sums ?? this.#sumsBefore(row);
    const { writerEpoch, commitTime } = first;
    this.#attached.clear();
    const restored: RestoredSteps = {
      commitOf: () => ({ writerEpoch, commitTime }),
      attachedTo: (stepNumber) => (this.#attached.get(stepNumber) ?? []).map(({ name }) => name),
      sentBytes: () => undefined,
    };
    const segment = new SegmentBuilder({ ...row, writerEpoch, restored }, sums, first.step.stepNumber);
    this.#open = { segment, trajectory, first };
  }

  async #close(): Promise<void> {
    if (this.#open === undefined) return;
    const { segment, trajectory, first } = this.#open;
    const row = segment.row(first.commitTime);
    const { first_step_number, next_step_number, rewards, reward_sum, byte_sum } = row;
    const segments = this.#done.get(trajectory)?.segments ?? [];
    if (this.#hasBranch.has(trajectory)) {
      const bodyBytes = row.body.length;
      segments.push({ first_step_number, next_step_number, rewards, reward_sum, byte_sum, body_bytes: bodyBytes });
    }
    this.#done.set(trajectory, { segments, sums: segment.sums });
    this.#rows.push(row);
    this.#bytes += row.body.length + row.states.length;
    this.#open = undefined;
    if (this.#rows.length >= INSERTED_ROWS || this.#bytes >= INSERTED_BYTES) await this.#insert();
  }

  async finish(): Promise<void> {
    await this.#close();
    await this.#insert();
    const sums = [...this.#batch.values()].map((row) =>
      sumsRow(row, this.#done.get(row.key)?.sums ?? this.#sumsBefore(row)),
    );
    await sql`with v (tree, key, byte_sum, timed_turns, turn_seconds, min_reward, max_reward) as (values ${sql.join(sums)})
      update trajectories set byte_sum = v.byte_sum, timed_turns = v.timed_turns, turn_seconds = v.turn_seconds,
        min_reward = v.min_reward, max_reward = v.max_reward,
        counted = next_step_number = coalesce(branch_point + 1, 0)
      from v where trajectories.tree = v.tree and trajectories.key = v.key`.execute(this.#db);
  }

  #sumsBefore({ tree, parent, branch_point: stepNumber }: TrajectoryRow): Sums {
    if (this.#before !== undefined) return this.#before;
    if (parent === null || stepNumber === null) return NO_SUMS;
    const segment = this.#done
      .get(parent)
      ?.segments.find((row) => row.first_step_number <= stepNumber && stepNumber < row.next_step_number);
    if (segment !== undefined) return sumsOfBranch(segment, stepNumber);
    return this.#parents.get(placeKey({ tree, owner: parent, stepNumber })) ?? NO_SUMS;
  }

  async #insert(): Promise<void> {
    if (this.#rows.length === 0) return;
    const rows = this.#rows.map((row) => sql`(${sql.join(COLUMNS.map((name) => row[name]))})`);
    this.#rows = [];
    this.#bytes = 0;
    await sql`insert into segments (${sql.join(COLUMNS.map((name) => sql.ref(name)))})
      values ${sql.join(rows)}`.execute(this.#db);
  }
}

const COLUMNS = Object.keys(SEGMENTS.columns) as (keyof SegmentRow)[];

async function insertAttached<T>(db: Kysely<T>, { row, data }: FormerStep['attached'][number]): Promise<void> {
  await sql`insert into attached_states (tree, trajectory, step_number, name, namespace, digest, media_type, size, data)
    values (${row.tree}, ${row.trajectory}, ${row.step_number}, ${row.name}, ${row.namespace}, ${row.digest},
      ${row.media_type}, ${row.size}, ${data ?? null})`.execute(db);
}

/** Former steps have the sizes of their states. */
const NO_SIZES: ReadonlyMap<string, number> = new Map();

function sumsRow({ tree, key }: TrajectoryRow, sums: Sums): RawBuilder<unknown> {
  return sql`(cast(${tree} as bigint), cast(${key} as bigint), cast(${sums.byteSum} as bigint),
    cast(${sums.timedTurns} as bigint), cast(${sums.turnSeconds} as double precision),
    cast(${bindOptionalReal(sums.minReward)} as double precision),
    cast(${bindOptionalReal(sums.maxReward)} as double precision))`;
}
