import { createHash } from 'node:crypto';
import { sql } from 'kysely';
import type { Digest } from '../../../../domain/ids.ts';
import { formatInstant } from '../../../../domain/instant.ts';
import { asSent, withAttached } from '../../../../domain/pruning.ts';
import { type AttachedState, isAttached, type StateRef } from '../../../../domain/step.ts';
import { StepFrames } from '../../../../domain/step_codec/frames.ts';
import { readStep } from '../../../../domain/step_codec/read.ts';
import { CommitBytes, readServerFields } from '../../../../domain/step_codec/server_fields.ts';
import { SmallStates } from '../../../../domain/step_codec/small_states.ts';
import { WireWriter } from '../../../../domain/step_codec/wire_writer.ts';
import { writeRewardSum } from '../../../../domain/step_codec/write.ts';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { readDigest } from '../../kit/values.ts';
import { attachedTo } from '../../log/read/read_stored.ts';
import { encodedStep, SegmentCursor } from '../../log/read/segment.ts';
import { type PageSegment, readPage } from '../../log/read/steps.ts';
import { readStates } from '../../log/read/stored_body.ts';
import { verified } from '../../log/states/bytes.ts';
import { statesOf } from '../../log/states/named_states.ts';

/** Bounds of a chunk: steps, and bytes of segments. */
const CHUNK_STEPS = 1024n;
const CHUNK_BYTES = 256 * 1024;

/** A state with a row of its own that steps of a chunk refer to. */
export interface RowState {
  readonly stepNumber: bigint;
  readonly key: bigint;
  readonly digest: Digest;
  readonly size: number;
}

export interface AttachedToStep {
  readonly stepNumber: bigint;
  readonly state: AttachedState;
}

/** A state that is stored with the steps that name it. */
interface SmallState {
  readonly stepNumber: bigint;
  readonly digest: Digest;
  readonly data: Uint8Array;
}

/** Consecutive own steps of a trajectory, as archives have them. */
export interface StepChunk {
  readonly first: bigint;
  readonly next: bigint;
  /** The messages `Step`, each after its length. */
  readonly bytes: Uint8Array;
  /** By step: where its message ends. */
  readonly ends: readonly number[];
  /** In order of step. */
  readonly attached: readonly AttachedToStep[];
  readonly small: readonly SmallState[];
  /** No two of `small` have one digest. */
  readonly hasDistinct: boolean;
  /** In order of step. */
  readonly rowStates: readonly RowState[];
}

/** Returns the steps before `to` of a chunk, and the others. */
export function splitChunk(chunk: StepChunk, to: bigint): readonly [StepChunk, StepChunk] {
  return [partOf(chunk, chunk.first, to), partOf(chunk, to, chunk.next)];
}

function partOf(chunk: StepChunk, first: bigint, next: bigint): StepChunk {
  if (first === chunk.first && next === chunk.next) return chunk;
  const isIn = ({ stepNumber }: { readonly stepNumber: bigint }) => stepNumber >= first && stepNumber < next;
  const [from, to] = [Number(first - chunk.first), Number(next - chunk.first)];
  const begin = from === 0 ? 0 : chunk.ends[from - 1]!;
  return {
    first,
    next,
    bytes: chunk.bytes.subarray(begin, to === 0 ? 0 : chunk.ends[to - 1]!),
    ends: chunk.ends.slice(from, to).map((end) => end - begin),
    attached: chunk.attached.filter(isIn),
    small: chunk.small.filter(isIn),
    hasDistinct: chunk.hasDistinct,
    rowStates: chunk.rowStates.filter(isIn),
  };
}

/**
 * Reads own steps [begin, end) of a trajectory in bounded chunks. Ends early if steps are missing, because the
 * trajectory was deleted meanwhile. Errors: STEP_CORRUPT, STATE_CORRUPT.
 */
export async function* stepChunks(
  scope: ReadScope,
  { tree, key }: TrajectoryRef,
  begin: bigint,
  end: bigint,
): AsyncGenerator<StepChunk, void, undefined> {
  const lineage = [{ key, from: begin, to: end }];
  const readFrom = (from: bigint) => {
    const to = from + CHUNK_STEPS < end ? from + CHUNK_STEPS : end;
    const read = () => readPage(scope, tree, lineage, { from, to, maxBytes: CHUNK_BYTES, withStates: true });
    return withRowStates(read, () => rowStatesOf(scope, { tree, key }, { from, to }));
  };
  if (begin >= end) return;
  let reading = readFrom(begin);
  for (let from = begin; ; ) {
    const { page, states } = await reading;
    // The slot of the reading ended with its iteration.
    await scope.engine.slots.take(scope.namespace);
    const chunk = new ChunkBuilder(from, states);
    for (const row of page.rows) {
      if (row.begin !== chunk.next) break;
      chunk.addRow(row);
    }
    if (chunk.next === from) return;
    if (chunk.hasFolded || page.attached !== undefined)
      for (let at = from; at < chunk.next; at += 1n) chunk.attach(at, attachedTo(page.attached, key, at) ?? []);
    from = chunk.next;
    if (from >= end) return yield chunk.finish();
    // The database reads the next chunk while the caller uses this one.
    reading = readFrom(from);
    reading.catch(() => undefined);
    yield chunk.finish();
  }
}

/**
 * Reads a page between two readings of the states that its steps refer to, until both are the same: then no state was
 * pruned or attached in between.
 */
export async function withRowStates<Page>(
  readPage: () => Promise<Page>,
  readStates: () => Promise<RowState[]>,
): Promise<{ readonly page: Page; readonly states: readonly RowState[] }> {
  for (let before = await readStates(); ; ) {
    const page = await readPage();
    const states = await readStates();
    const isSame = ({ stepNumber, key }: RowState, i: number) =>
      before[i]?.stepNumber === stepNumber && before[i].key === key;
    if (states.length === before.length && states.every(isSame)) return { page, states };
    before = states;
  }
}

class ChunkBuilder {
  next: bigint;
  readonly #first: bigint;
  readonly #out = new WireWriter(CHUNK_BYTES);
  readonly #step = new WireWriter(4096);
  readonly #ends: number[] = [];
  readonly #attached: AttachedToStep[] = [];
  readonly #small: SmallState[] = [];
  readonly #verified = new Map<Digest, Uint8Array>();
  /** Attached states that merges have written into their steps. */
  readonly #folded = new Map<bigint, readonly AttachedState[]>();
  readonly #rowStates: readonly RowState[];

  constructor(first: bigint, rowStates: readonly RowState[]) {
    this.#first = first;
    this.next = first;
    this.#rowStates = rowStates;
  }

  get hasFolded(): boolean {
    return this.#folded.size > 0;
  }

  addRow({ segment, small, begin, end }: PageSegment): void {
    const commits = new CommitBytes();
    const smallStates =
      small === undefined || small.states.length === 0 ? undefined : new SmallStates(readStates(small));
    for (const at = new SegmentCursor(segment); this.next < end && at.next(); ) {
      const states = smallStates === undefined ? undefined : statesOf(at, smallStates);
      if (at.stepNumber < begin) continue;
      const bytes = at.bytesWithoutAttached;
      const commit = commits.of(at.commit);
      this.#step.raw(bytes, 0, bytes.length);
      this.#step.raw(commit, 0, commit.length);
      writeRewardSum(this.#step, at.rewardSum);
      this.#out.delimitedFrom(this.#step);
      this.#ends.push(this.#out.length);
      this.next += 1n;
      if (states !== undefined) this.#addStates(at.stepNumber, states);
    }
  }

  /** Adds the states that were attached to a step, of which `states` have rows of their own. */
  attach(stepNumber: bigint, states: readonly AttachedState[]): void {
    for (const state of withAttached(this.#folded.get(stepNumber) ?? [], states)) {
      this.#attached.push({ stepNumber, state });
      this.#keep(stepNumber, state);
    }
  }

  finish(): StepChunk {
    return {
      first: this.#first,
      next: this.next,
      bytes: this.#out.finish(),
      ends: this.#ends,
      attached: this.#attached,
      small: this.#small,
      hasDistinct: this.#verified.size === this.#small.length,
      rowStates: this.#rowStates.filter(({ stepNumber }) => stepNumber < this.next),
    };
  }

  #addStates(stepNumber: bigint, states: readonly StateRef[]): void {
    for (const state of states) this.#keep(stepNumber, state);
    if (states.some(isAttached)) this.#folded.set(stepNumber, states.filter(isAttached));
  }

  #keep(stepNumber: bigint, { digest, data }: StateRef): void {
    if (data === undefined) return;
    let known = this.#verified.get(digest);
    if (known === undefined) {
      known = verified(data, digest);
      this.#verified.set(digest, known);
    }
    this.#small.push({ stepNumber, digest, data: known });
  }
}

/** Returns the states with rows of their own that own steps [from, to) refer to, in order of step. */
async function rowStatesOf(
  { engine, db }: ReadScope,
  { tree, key }: TrajectoryRef,
  { from, to }: { readonly from: bigint; readonly to: bigint },
): Promise<RowState[]> {
  const { rows } = await sql<{ step_number: bigint; key: bigint; digest: Uint8Array; size: bigint }>`
    select r.step_number, s.key, s.digest, s.size
    from ${engine.sql.table('state_refs')} as r cross join ${engine.sql.table('states')} as s
    where r.tree = ${tree} and r.trajectory = ${key} and r.step_number >= ${from} and r.step_number < ${to}
      and s.key = r.state
    order by r.step_number, r.name, s.key`.execute(db);
  return rows.map(({ step_number: stepNumber, key: state, digest, size }) => {
    return { stepNumber, key: state, digest: readDigest(digest), size: Number(size) };
  });
}

/** The record of the states that were attached to the steps of a chunk. They come before the steps. */
export function attachedRecord(trajectoryId: string, attached: readonly AttachedToStep[]): string {
  const states = attached.map(({ stepNumber, state }) => {
    const { name, digest, mediaType, size } = state;
    const small = state.data !== undefined;
    return { step_number: `${stepNumber}`, name, digest, media_type: mediaType, size, small, ...timesOf(state) };
  });
  return `${JSON.stringify({ record: 'attached_states', trajectory: trajectoryId, states })}\n`;
}

/** JSON leaves out an undefined time. */
function timesOf({ attachTime, prunedTime }: AttachedState) {
  return {
    attach_time: formatInstant(attachTime, 6),
    pruned_time: prunedTime === undefined ? undefined : formatInstant(prunedTime, 6),
  };
}

/** The digest of the own steps of a trajectory, with the states that were attached to them. */
export class StepsDigest {
  readonly #hasher = createHash('sha256');

  /** Adds the next steps. `attached`: of these steps, in order of step and name. */
  add({ first, bytes, ends, attached }: Pick<StepChunk, 'first' | 'bytes' | 'ends' | 'attached'>): void {
    let done = 0;
    for (const { stepNumber, state } of attached) {
      const end = ends[Number(stepNumber - first)]!;
      if (end > done) this.#hasher.update(bytes.subarray(done, end));
      done = end;
      const { attach_time, pruned_time = null } = timesOf(state);
      this.#hasher.update(JSON.stringify([state.name, state.digest, state.mediaType, attach_time, pruned_time]));
    }
    this.#hasher.update(bytes.subarray(done));
  }

  finish(): string {
    return this.#hasher.digest('hex');
  }
}

/** Steps of an archive with what was attached to them. */
type StepsOfPart = Pick<StepChunk, 'first' | 'bytes' | 'ends' | 'attached'>;

/** Compares the steps of an archive with those that are stored of the trajectory. */
export class StoredComparison {
  readonly #scope: ReadScope;
  readonly #ref: TrajectoryRef;
  readonly #digest = new StepsDigest();

  constructor(scope: ReadScope, ref: TrajectoryRef) {
    this.#scope = scope;
    this.#ref = ref;
  }

  /**
   * Returns the first step that is stored otherwise or not at all, with what was attached to it. States that were
   * attached or pruned on one side only are no difference.
   */
  async firstDifference({ first, bytes, ends, attached }: StepsOfPart): Promise<bigint | undefined> {
    const next = first + BigInt(ends.length);
    const stored = new Map<string, AttachedToStep>();
    let at = first;
    for await (const chunk of stepChunks(this.#scope, this.#ref, first, next)) {
      this.#digest.add(chunk);
      let begin = 0;
      for (const end of chunk.ends) {
        const index = Number(at - first);
        const sent = bytes.subarray(index === 0 ? 0 : ends[index - 1]!, ends[index]!);
        if (!isSameStep(chunk.bytes.subarray(begin, end), sent)) return at;
        begin = end;
        at += 1n;
      }
      for (const each of chunk.attached) stored.set(`${each.stepNumber} ${each.state.name}`, each);
    }
    if (at < next) return at;
    const other = attached.find(({ stepNumber, state: { name, digest, mediaType } }) => {
      const found = stored.get(`${stepNumber} ${name}`)?.state;
      return found?.digest !== digest || found.mediaType !== mediaType;
    });
    return other?.stepNumber;
  }

  /** Returns the digest of the stored steps. */
  finish(): string {
    return this.#digest.finish();
  }
}

/** Whether two steps with their length are the same but for what retention removed of them (S13). */
function isSameStep(one: Uint8Array, other: Uint8Array): boolean {
  return Buffer.compare(one, other) === 0 || Buffer.compare(withoutMarksIn(one), withoutMarksIn(other)) === 0;
}

function withoutMarksIn(frame: Uint8Array): Uint8Array {
  const frames = new StepFrames(frame);
  frames.next();
  const { sentTo } = readServerFields(frame, frames.from, frames.to);
  const sent = encodedStep(asSent(readStep(frame, frames.from, sentTo)));
  return Buffer.concat([sent, frame.subarray(sentTo, frames.to)]);
}
