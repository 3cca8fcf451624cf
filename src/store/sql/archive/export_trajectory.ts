import { hash } from 'node:crypto';
import { type CompiledQuery, sql } from 'kysely';
import type { ArchivePart, StatePart } from '../../../domain/archive.ts';
import { AnabranchError } from '../../../domain/errors.ts';
import type { Digest } from '../../../domain/ids.ts';
import type { RestoredState } from '../../../domain/step.ts';
import { readState } from '../state/restore.ts';
import type { Row } from '../tables/table.ts';
import type { ReadScope } from '../transaction.ts';
import { KeySet } from '../usage/key_set.ts';
import { findRowIds, lineOf, recordOf, trajectoryIds } from './row_ids.ts';
import { attachedRecord, type RowState, type StepChunk, StepsDigest, stepChunks } from './step_chunks.ts';

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

const DELETED: ReadonlySet<string> = new Set(['STATE_NOT_FOUND']);

/** Exports trajectories one by one. Each state with a row of its own is exported once. */
export class TrajectoryExport {
  readonly #scope: ReadScope;
  readonly #states = new KeySet();
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
    const digest = new StepsDigest();
    let next = found.begin;
    try {
      for await (const chunk of stepChunks(this.#scope, wanted, found.begin, found.end)) {
        digest.add(chunk);
        yield* this.#chunk(found.id, chunk);
        next = chunk.next;
      }
    } catch (error) {
      if (!(error instanceof AnabranchError && DELETED.has(error.reason))) throw error;
      next = -1n;
    }
    const isWhole = next === found.end;
    if (isWhole) {
      this.trajectories += 1n;
      this.steps += found.end - found.begin;
    } else this.leftOut.push(found.id);
    const steps = digest.finish();
    const end = isWhole ? { steps_digest: steps, digest: trajectoryDigest(found.line, steps) } : { left_out: true };
    yield { kind: 'records', text: lineOf('trajectory_end', { id: found.id, ...end }) };
  }

  async *#chunk(trajectoryId: string, chunk: StepChunk): AsyncGenerator<ArchivePart, void, undefined> {
    const { rowStates } = chunk;
    for (let from = chunk.first; from < chunk.next; ) {
      const to = this.#endOfPart(rowStates, from, chunk.next);
      yield* this.#rowStates(rowStates.filter(({ stepNumber }) => stepNumber >= from && stepNumber < to));
      // Small states are few bytes, so those of a chunk come at once.
      if (from === chunk.first) for (const [digest, bytes] of chunk.small) yield smallPart(digest, bytes);
      const attached = chunk.attached.filter(({ stepNumber }) => stepNumber >= from && stepNumber < to);
      if (attached.length > 0) yield { kind: 'records', text: attachedRecord(trajectoryId, attached) };
      const frames = chunk.frames.slice(Number(from - chunk.first), Number(to - chunk.first));
      yield { kind: 'steps', trajectoryId, firstStepNumber: from, bytes: Buffer.concat(frames) };
      from = to;
    }
  }

  #endOfPart(states: readonly RowState[], from: bigint, end: bigint): bigint {
    let bytes = 0;
    for (const { stepNumber, key, size } of states) {
      if (stepNumber < from || this.#states.has(key)) continue;
      bytes += size;
      if (bytes > STATE_BYTES && stepNumber > from) return stepNumber;
    }
    return end;
  }

  async *#rowStates(states: readonly RowState[]): AsyncGenerator<ArchivePart, void, undefined> {
    const last: RestoredState = {};
    for (const { key, digest, size } of states) {
      if (!this.#states.add(key)) continue;
      this.states += 1n;
      for (let offset = 0; offset < size || offset === 0; ) {
        const bytes = await readState(this.#scope, digest, offset, last);
        if (bytes.length === 0 && size > 0) throw new Error(`state ${digest} ends before its size`);
        yield { kind: 'state', digest, size, small: false, offset, bytes };
        offset += Math.max(bytes.length, 1);
      }
    }
  }
}

function smallPart(digest: Digest, bytes: Uint8Array): StatePart {
  return { kind: 'state', digest, size: bytes.length, small: true, offset: 0, bytes };
}

/** The digest of everything that an archive has of a trajectory. */
export function trajectoryDigest(line: string, stepsDigest: string): string {
  return hash('sha256', `${line}${stepsDigest}`, 'hex');
}

export interface TrajectoryLine {
  readonly id: string;
  readonly line: string;
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
  const [rows, tags, history] = await engine.readSnapshot([
    compiled(sql`select * from ${engine.table('trajectories')}
      where tree = ${tree} and key = ${key} and namespace = ${namespace} and not purging`),
    compiled(sql`select * from ${engine.table('tags')} where tree = ${tree} and trajectory = ${key} order by name`),
    compiled(sql`select * from ${engine.table('status_changes')}
      where tree = ${tree} and entity_kind = 'TRAJECTORY' and entity = ${key} order by ordinal`),
  ]);
  const row = rows[0];
  if (row === undefined) return undefined;
  const ids = await findRowIds({ engine, db }, [['trajectory', [row]]]);
  const parents =
    row.parent === null ? undefined : await trajectoryIds({ engine, db }, [{ tree, key: row.parent as bigint }]);
  const branchPoint = row.branch_point as bigint | null;
  const line = lineOf('trajectory', {
    ...recordOf('trajectory', { ...row, next_step_number: end }, ids),
    parent: parents?.get(row.parent as bigint) ?? null,
    hidden,
    tags: tags.filter(({ step_number }) => (step_number as bigint) < end).map((tag) => recordOf('tag', tag, ids)),
    history: history.map((change) => recordOf('status_change', change, ids)),
  });
  return { id: row.id as string, line, begin: branchPoint === null ? 0n : branchPoint + 1n, end };
}
