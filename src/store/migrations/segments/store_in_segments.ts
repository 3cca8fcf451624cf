import { type Kysely, type RawBuilder, sql } from 'kysely';
import { type PackedStep, packStep } from '../../../domain/step_codec/packed_step.ts';
import { WireWriter } from '../../../domain/step_codec/wire_writer.ts';
import { NO_SUMS, type SegmentSums, type Sums, sumsOfBranch } from '../../sql/step/running_sums.ts';
import { SegmentBuilder, StepEncoder } from '../../sql/step/segment.ts';
import { placeKey, sumsAt } from '../../sql/step/sums_at.ts';
import type { SegmentRow } from '../../sql/tables/steps.ts';
import { readReal } from '../../sql/values.ts';
import type { ConversionProgress } from '../migration.ts';
import { type FormerStep, PAGE_BYTES, PAGE_STEPS, readFewSteps, readFormerSteps } from './former_steps.ts';

/**
 * The table with the progress of the conversion: the last trajectory whose steps are all converted or, with
 * `next_step_number`, the one whose steps before this number are.
 */
export const CONVERSION = `create table conversion (depth bigint not null, key bigint not null, next_step_number bigint,
      done_steps bigint not null, total_steps bigint not null);
    insert into conversion select -1, 0, null, 0,
      coalesce(sum(next_step_number - coalesce(branch_point + 1, 0)), 0) from trajectories;
    create index trajectories_by_depth on trajectories (depth, key);`;

interface ConversionRow {
  readonly depth: bigint;
  readonly key: bigint;
  readonly next_step_number: bigint | null;
  readonly done_steps: bigint;
  readonly total_steps: bigint;
}

/** Trajectories, and about the steps, of one transaction. */
const TRAJECTORIES = 500;
const STEPS = 10_000n;

/**
 * Converts the next rows of `former_steps` to rows of `segments`, in order of trajectories: parents come before their
 * branches. A long trajectory is converted in several calls.
 */
export async function storeSomeInSegments<T>(db: Kysely<T>): Promise<ConversionProgress | undefined> {
  const { rows: conversions } = await sql<ConversionRow>`select * from conversion`.execute(db);
  const at = conversions[0]!;
  const isWithin = at.next_step_number !== null;
  const after = isWithin ? sql`key >= ${at.key}` : sql`key > ${at.key}`;
  const { rows } =
    await sql<TrajectoryRow>`select tree, key, namespace, parent, branch_point, next_step_number, byte_sum, depth
    from trajectories where depth > ${at.depth} or (depth = ${at.depth} and ${after})
    order by depth, key limit ${sql.lit(TRAJECTORIES)}`.execute(db);
  if (rows.length === 0) return undefined;
  let [done, next, last] = [0n, at.next_step_number, rows[0]!];
  for (const batch of batchesOf(rows)) {
    if (done >= STEPS) break;
    last = batch.at(-1)!;
    if (isLong(last)) {
      do {
        const from: bigint = next ?? beginOf(last);
        next = await convertPage(db, last, from);
        done += (next ?? last.next_step_number) - from;
      } while (next !== null && done < STEPS);
    } else {
      await convert(db, batch);
      for (const row of batch) done += row.next_step_number - beginOf(row);
    }
  }
  const doneSteps = at.done_steps + done;
  await sql`update conversion set depth = ${last.depth}, key = ${last.key}, next_step_number = ${next},
    done_steps = ${doneSteps}`.execute(db);
  return { doneSteps, totalSteps: at.total_steps };
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

async function convert<T>(db: Kysely<T>, batch: readonly TrajectoryRow[]): Promise<void> {
  const segments = new Segments(db, batch, await sumsOfParents(db, batch));
  const few = await readFewSteps(db, batch);
  for (const { key } of batch) for (const step of few.get(key) ?? []) await segments.add(step);
  await segments.finish();
}

/** Converts the next steps of a long trajectory. Returns the number after them, or null if they were the last ones. */
async function convertPage<T>(db: Kysely<T>, row: TrajectoryRow, from: bigint): Promise<bigint | null> {
  const steps = await readFormerSteps(db, row, from);
  const before = from === beginOf(row) ? undefined : await sumsBefore(db, row, from);
  const segments = new Segments(db, [row], await sumsOfParents(db, [row]), before);
  for (const step of steps) await segments.add(step);
  await segments.finish();
  const last = steps.at(-1);
  const next = last === undefined ? row.next_step_number : last.step.stepNumber + 1n;
  return next < row.next_step_number ? next : null;
}

/** Returns the sums of a trajectory whose steps before this number are converted. */
async function sumsBefore<T>(db: Kysely<T>, row: TrajectoryRow, from: bigint): Promise<Sums> {
  const place = { tree: row.tree, owner: row.key, stepNumber: from - 1n };
  const sums = (await sumsOf(db, [place])).get(placeKey(place)) ?? NO_SUMS;
  const { rows } = await sql<{ timed_turns: bigint; turn_seconds: number | string }>`select timed_turns, turn_seconds
    from trajectories where tree = ${row.tree} and key = ${row.key}`.execute(db);
  const { timed_turns: timedTurns, turn_seconds: turnSeconds } = rows[0]!;
  return { ...sums, timedTurns, turnSeconds: readReal(turnSeconds) };
}

/** Rows have the columns of this migration. */
function sumsOf<T>(db: Kysely<T>, places: Parameters<typeof sumsAt>[1]): ReturnType<typeof sumsAt> {
  return sumsAt({ engine: { table: (name) => sql.table(name) }, db }, places, sql`octet_length(s.body)`);
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
    const { trajectory } = former;
    const step = packStep(this.#out, former.step);
    const frame = this.#encoder.encode(step, NO_SIZES);
    if (!this.#fits(former, step, frame)) await this.#begin(trajectory, former);
    this.#open?.segment.add(step, frame);
  }

  /** A row has steps of one trajectory and one commit. */
  #fits({ trajectory, commitTime, writerEpoch }: FormerStep, step: PackedStep, frame: Uint8Array): boolean {
    if (this.#open === undefined || this.#open.trajectory !== trajectory) return false;
    const { first, segment } = this.#open;
    return first.commitTime === commitTime && first.writerEpoch === writerEpoch && segment.hasRoomFor(step, frame);
  }

  async #begin(trajectory: bigint, first: FormerStep): Promise<void> {
    await this.#close();
    const row = this.#batch.get(trajectory)!;
    const sums = this.#done.get(trajectory)?.sums ?? this.#sumsBefore(row);
    const segment = new SegmentBuilder({ ...row, writerEpoch: first.writerEpoch }, sums, first.step.stepNumber);
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
    this.#bytes += row.body.length;
    this.#open = undefined;
    if (this.#rows.length >= INSERTED_ROWS || this.#bytes >= INSERTED_BYTES) await this.#insert();
  }

  async finish(): Promise<void> {
    await this.#close();
    await this.#insert();
    const sums = [...this.#batch.values()].map((row) =>
      sumsRow(row, this.#done.get(row.key)?.sums ?? this.#sumsBefore(row)),
    );
    await sql`with v (tree, key, byte_sum, timed_turns, turn_seconds) as (values ${sql.join(sums)})
      update trajectories set byte_sum = v.byte_sum, timed_turns = v.timed_turns, turn_seconds = v.turn_seconds
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

  /** The columns are those of this migration, whatever later ones add. */
  async #insert(): Promise<void> {
    if (this.#rows.length === 0) return;
    const rows = this.#rows.map(
      (row) => sql`(${row.tree}, ${row.trajectory}, ${row.first_step_number}, ${row.next_step_number}, ${row.namespace},
        ${row.writer_epoch}, ${row.commit_time}, ${row.reward_sum}, ${row.byte_sum}, ${row.rewards}, ${row.ends},
        ${row.metric_sums}, ${row.checksum}, ${row.body})`,
    );
    this.#rows = [];
    this.#bytes = 0;
    await sql`insert into segments (tree, trajectory, first_step_number, next_step_number, namespace, writer_epoch, commit_time,
      reward_sum, byte_sum, rewards, ends, metric_sums, checksum, body) values ${sql.join(rows)}`.execute(this.#db);
  }
}

/** Former steps have the sizes of their states. */
const NO_SIZES: ReadonlyMap<string, number> = new Map();

function sumsRow({ tree, key }: TrajectoryRow, sums: Sums): RawBuilder<unknown> {
  return sql`(cast(${tree} as bigint), cast(${key} as bigint), cast(${sums.byteSum} as bigint),
    cast(${sums.timedTurns} as bigint), cast(${sums.turnSeconds} as double precision))`;
}
