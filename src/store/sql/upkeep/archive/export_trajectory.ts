import { createHash } from 'node:crypto';
import { type CompiledQuery, sql } from 'kysely';
import type { ArchivePart, StatePart } from '../../../../domain/archive.ts';
import { AnabranchError } from '../../../../domain/errors.ts';
import type { Digest } from '../../../../domain/ids.ts';
import type { NewState, RestoredState } from '../../../../domain/step.ts';
import type { Row } from '../../kit/tables/table.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { readState } from '../../log/states/restore.ts';
import { KeySet } from '../usage/key_set.ts';
import { findRowIds, lineOf, recordOf, trajectoryIds } from './row_keys.ts';
import { attachedRecord, type RowState, type StepChunk, StepsDigest, splitChunk, stepChunks } from './step_chunks.ts';

/** A trajectory to export, with its own steps before `end`. */
export interface ExportedTrajectory {
  readonly tree: bigint;
  readonly key: bigint;
  readonly id: string;
  readonly end: bigint;
  readonly hidden: boolean;
}

/** New states of one part of steps, unless one step has more. */
const STATE_BYTES = 4 * 1024 * 1024;

/** Tags of one record. */
const TAGS_OF_RECORD = 1000;

/** Attached states of one record, unless one step has more. */
const ATTACHED_OF_RECORD = 2048;

/** Bytes of one part of a state. */
const PIECE_BYTES = 256 * 1024;

/** A state was removed after the steps that refer to it were read. */
class StateRemoved extends Error {
  readonly key: bigint;

  constructor(key: bigint) {
    super(`state with row key ${key} was removed`);
    this.key = key;
  }
}

/** How far a trajectory was exported. */
interface Written {
  next: bigint;
  readonly digest: StepsDigest;
}

/** Exports trajectories one by one. Each state with a row of its own is exported once. */
export class TrajectoryExport {
  readonly #scope: ReadScope;
  readonly #exported = new KeySet();
  trajectories = 0n;
  steps = 0n;
  states = 0n;
  readonly leftOut: string[] = [];

  constructor(scope: ReadScope) {
    this.#scope = scope;
  }

  /** A trajectory that was deleted meanwhile is left out. */
  async *export(wanted: ExportedTrajectory): AsyncGenerator<ArchivePart, void, undefined> {
    const found = await trajectoryRecord(this.#scope, wanted);
    if (found === undefined) {
      this.leftOut.push(wanted.id);
      return;
    }
    yield { kind: 'records', text: found.line };
    const written: Written = { next: found.begin, digest: new StepsDigest() };
    for (let removed: bigint | undefined; ; ) {
      try {
        for await (const chunk of stepChunks(this.#scope, wanted, written.next, found.end))
          yield* this.#chunk(found.id, chunk, written);
        break;
      } catch (error) {
        // The steps are read again: then retention has marked the state as pruned, or they were deleted, too.
        if (!(error instanceof StateRemoved)) throw error;
        if (error.key === removed) break;
        removed = error.key;
      }
    }
    const isWhole = written.next === found.end;
    if (isWhole) {
      this.trajectories += 1n;
      this.steps += found.end - found.begin;
    } else this.leftOut.push(found.id);
    const steps = written.digest.finish();
    const end = isWhole ? { steps_digest: steps, digest: trajectoryDigest(found, steps) } : { left_out: true };
    if (isWhole) for (const text of found.tags) yield { kind: 'records', text };
    yield { kind: 'records', text: lineOf('trajectory_end', { id: found.id, ...end }) };
  }

  async *#chunk(id: string, chunk: StepChunk, written: Written): AsyncGenerator<ArchivePart, void, undefined> {
    for (let rest = chunk; rest.first < rest.next; ) {
      const [part, others] = splitChunk(rest, this.#endOfPart(rest));
      yield* this.#states(part.rowStates);
      if (part.small.length > 0)
        yield { kind: 'small_states', states: part.hasDistinct ? part.small : distinct(part.small) };
      if (part.attached.length > 0) yield { kind: 'records', text: attachedRecord(id, part.attached) };
      yield { kind: 'steps', trajectoryId: id, firstStepNumber: part.first, bytes: part.bytes };
      written.digest.add(part);
      written.next = part.next;
      rest = others;
    }
  }

  /** Bounds the new states of a part, those that are stored with its steps, and those that were attached. */
  #endOfPart({ first, next, rowStates, small, attached }: StepChunk): bigint {
    const rows = rowStates.filter(({ key }) => !this.#exported.has(key));
    const smallOnes = distinct(small).map(({ stepNumber, data }) => ({ stepNumber, size: data.length }));
    const ends = [
      endWithin(rows, STATE_BYTES, first),
      endWithin(smallOnes, STATE_BYTES, first),
      endWithin(
        attached.map(({ stepNumber }) => ({ stepNumber, size: 1 })),
        ATTACHED_OF_RECORD,
        first,
      ),
    ];
    return ends.reduce<bigint>((least, end) => (end !== undefined && end < least ? end : least), next);
  }

  async *#states(states: readonly RowState[]): AsyncGenerator<ArchivePart, void, undefined> {
    const last: RestoredState = {};
    for (const state of states) {
      if (this.#exported.has(state.key)) continue;
      yield* this.#state(state, last);
      this.#exported.add(state.key);
      this.states += 1n;
    }
  }

  /** Errors: StateRemoved. Then the archive has what was read of the state, zeros up to its size, and a record. */
  async *#state({ key, digest, size }: RowState, last: RestoredState): AsyncGenerator<ArchivePart, void, undefined> {
    const piece = (offset: number, bytes: Uint8Array): StatePart => {
      return { kind: 'state', digest, size, offset, bytes };
    };
    for (let offset = 0; offset < size || offset === 0; ) {
      const bytes = await readUnlessRemoved(this.#scope, digest, offset, last);
      if (bytes === undefined) {
        const isBegun = offset > 0;
        for (; isBegun && offset < size; offset += PIECE_BYTES)
          yield piece(offset, new Uint8Array(Math.min(size - offset, PIECE_BYTES)));
        if (isBegun) yield { kind: 'records', text: lineOf('state_left_out', { digest }) };
        throw new StateRemoved(key);
      }
      if (bytes.length === 0 && size > 0) throw new Error(`state ${digest} ends before its size`);
      yield piece(offset, bytes);
      offset += Math.max(bytes.length, 1);
    }
  }
}

/** Returns the first step after `first` with which the sizes exceed `most`. */
function endWithin(
  sizes: readonly { readonly stepNumber: bigint; readonly size: number }[],
  most: number,
  first: bigint,
): bigint | undefined {
  let sum = 0;
  for (const { stepNumber, size } of sizes) {
    sum += size;
    if (sum > most && stepNumber > first) return stepNumber;
  }
  return undefined;
}

async function readUnlessRemoved(
  scope: ReadScope,
  digest: Digest,
  offset: number,
  last: RestoredState,
): Promise<Uint8Array | undefined> {
  try {
    return await readState(scope, digest, offset, last);
  } catch (error) {
    if (error instanceof AnabranchError && error.reason === 'STATE_NOT_FOUND') return undefined;
    throw error;
  }
}

/** Returns the first of each digest. */
function distinct<State extends NewState>(states: readonly State[]): State[] {
  const found = new Map<Digest, State>();
  for (const state of states) if (!found.has(state.digest)) found.set(state.digest, state);
  return [...found.values()];
}

/** The digest of everything that an archive has of a trajectory. */
export function trajectoryDigest({ line, tags }: TrajectoryLine, stepsDigest: string): string {
  const hasher = createHash('sha256').update(line);
  for (const each of tags) hasher.update(each);
  return hasher.update(stepsDigest).digest('hex');
}

export interface TrajectoryLine {
  readonly id: string;
  readonly line: string;
  /** Records of the tags that have no room in the line. */
  readonly tags: readonly string[];
  /** Own steps: [begin, end). */
  readonly begin: bigint;
  readonly end: bigint;
}

/** Reads what belongs to a trajectory apart from its steps, from one snapshot. */
export async function trajectoryRecord(
  { engine, db, namespace }: ReadScope,
  { tree, key, end, hidden }: Omit<ExportedTrajectory, 'id'>,
): Promise<TrajectoryLine | undefined> {
  const compiled = (query: ReturnType<typeof sql>) => query.compile(db) as CompiledQuery<Row>;
  const [rows, tags, history] = await engine.reads.snapshot([
    compiled(sql`select * from ${engine.sql.table('trajectories')}
      where tree = ${tree} and key = ${key} and namespace = ${namespace} and not purging`),
    compiled(sql`select * from ${engine.sql.table('tags')} where tree = ${tree} and trajectory = ${key} order by name`),
    compiled(sql`select * from ${engine.sql.table('status_changes')}
      where tree = ${tree} and entity_kind = 'TRAJECTORY' and entity = ${key} order by ordinal`),
  ]);
  const row = rows[0];
  if (row === undefined) return undefined;
  const ids = await findRowIds({ engine, db }, [['trajectory', [row]]]);
  const parents =
    row.parent === null ? undefined : await trajectoryIds({ engine, db }, [{ tree, key: row.parent as bigint }]);
  const branchPoint = row.branch_point as bigint | null;
  const tagged = tags
    .filter(({ step_number }) => (step_number as bigint) < end)
    .map((tag) => recordOf('tag', tag, ids));
  const line = lineOf('trajectory', {
    ...recordOf('trajectory', { ...row, next_step_number: end }, ids),
    parent: parents?.get(row.parent as bigint) ?? null,
    hidden,
    tags: tagged.slice(0, TAGS_OF_RECORD),
    history: history.map((change) => recordOf('status_change', change, ids)),
  });
  const others = Array.from({ length: Math.ceil(tagged.length / TAGS_OF_RECORD) }, (_, i) => {
    const some = tagged.slice(i * TAGS_OF_RECORD, (i + 1) * TAGS_OF_RECORD);
    return lineOf('tags', { trajectory: row.id, tags: some });
  }).slice(1);
  return { id: row.id as string, line, tags: others, begin: branchPoint === null ? 0n : branchPoint + 1n, end };
}
