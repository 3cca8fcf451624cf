import { type ArchiveRecord, archiveInvalid, importConflict } from '../../../../domain/archive.ts';
import { AnabranchError } from '../../../../domain/errors.ts';
import type { Digest } from '../../../../domain/ids.ts';
import { LIMITS } from '../../../../domain/limits.ts';
import { depthFault } from '../../../../domain/lineage.ts';
import { withAttached } from '../../../../domain/pruning.ts';
import { hasRow, type NewState } from '../../../../domain/step.ts';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import { byId } from '../../kit/by_id.ts';
import type { Sums } from '../../kit/running_sums.ts';
import type { SegmentRow } from '../../kit/tables/steps.ts';
import type { NamespaceTransaction, ReadScope } from '../../kit/transaction.ts';
import { StepWriter } from '../../log/append/writer.ts';
import { compressedBody, compressedStates } from '../../log/read/stored_body.ts';
import { placeKey, sumsAt } from '../../log/read/sums_at.ts';
import { refBytes, STEP_WITH_STATES_BYTES } from '../../log/states/attach.ts';
import type { EncodedState } from '../../log/states/bytes.ts';
import { type Belonging, lockBelonging } from '../../log/trajectory/belonging.ts';
import { lockTrajectory } from '../trajectory/purge_marks.ts';
import type { ImportedStep, ImportedSteps, StateSize } from './imported_steps.ts';
import { countOf, listOf, textOf } from './nouns.ts';
import type { AttachedToStep } from './step_chunks.ts';

/** Steps of an archive with everything that arrived for them. */
export interface StepsToImport extends ImportedSteps {
  /** The messages of these steps, each after its length. */
  readonly bytes: Uint8Array;
  readonly attached: readonly AttachedToStep[];
  readonly inline: readonly NewState[];
  /** Of the states that are stored with the steps. */
  readonly smallBytes: number;
}

/** Bounds of one transaction, unless one part has more. */
const MOST_STEPS = 2048;
const MOST_BYTES = 4 * 1024 * 1024;

/** Consecutive parts of one trajectory, which one transaction writes: each transaction waits for the disk. */
export class HeldSteps {
  readonly steps: ImportedStep[] = [];
  readonly attached: AttachedToStep[] = [];
  readonly #inline = new Map<Digest, NewState>();
  #bytes = 0;

  get inline(): readonly NewState[] {
    return [...this.#inline.values()];
  }

  hasRoomFor(part: StepsToImport): boolean {
    return this.steps.length + part.steps.length <= MOST_STEPS && this.#bytes + sizeOf(part) <= MOST_BYTES;
  }

  add(part: StepsToImport): void {
    for (const step of part.steps) this.steps.push(step);
    for (const each of part.attached) this.attached.push(each);
    for (const state of part.inline) this.#inline.set(state.digest, state);
    this.#bytes += sizeOf(part);
  }
}

function sizeOf({ bytes, inline, smallBytes }: StepsToImport): number {
  return inline.reduce((sum, { data }) => sum + data.length, bytes.length + smallBytes);
}

/**
 * Requires that no step has an epoch above that of its trajectory, and that all states have the sizes that steps say.
 * `stored` has the sizes of the states that are stored already. Errors: ARCHIVE_INVALID.
 */
export function requireAgreement(
  trajectory: string,
  epoch: bigint,
  { steps, attached }: HeldSteps,
  stored: ReadonlyMap<Digest, number>,
  inline: readonly EncodedState[],
): void {
  const sizes = new Map([...stored, ...inline.map(({ digest, size }) => [digest, size] as const)]);
  const isOther = ({ digest, size }: StateSize) => (sizes.get(digest) ?? size) !== size;
  const byStep = Map.groupBy(attached, ({ stepNumber }) => stepNumber);
  for (const step of steps) {
    const { packed, writerEpoch, sizes: named } = step;
    const place = `step ${packed.stepNumber} of ${trajectory}`;
    if (writerEpoch > epoch) throw archiveInvalid(place, 'its epoch is greater than that of the trajectory');
    const isWrong =
      named.some(isOther) ||
      packed.states.some(({ data, size }) => data !== undefined && data.length !== size) ||
      packed.tensorStates.some(({ digest, bytes: size }) => isOther({ digest, size }));
    if (isWrong) throw archiveInvalid(place, 'a state has another size');
    const fault = attachedFault(step, byStep.get(packed.stepNumber) ?? []);
    if (fault !== undefined) throw archiveInvalid(place, fault);
  }
  const wrong = attached.find(({ state }) => hasRow(state) && isOther(state));
  if (wrong !== undefined) throw archiveInvalid(trajectory, 'an attached state has another size');
}

/** Returns why a step cannot have these attached states (W3, W9). */
function attachedFault({ packed, sentBytes }: ImportedStep, attached: readonly AttachedToStep[]): string | undefined {
  if (attached.length === 0) return undefined;
  const states = withAttached(
    packed.states,
    attached.map(({ state }) => state),
  );
  if (states.length > LIMITS.statesPerStep) return `it has ${states.length} states with the attached ones`;
  if (new Set(states.map(({ name }) => name)).size < states.length) return 'two of its states have the same name';
  const bytes = states.reduce((sum, state) => sum + refBytes(state), sentBytes ?? packed.bytes.length);
  return bytes > STEP_WITH_STATES_BYTES ? 'it is too large with the attached states' : undefined;
}

/** Requires that the tags of a record point to steps before `end`. Errors: ARCHIVE_INVALID. */
export function requireSteps(trajectory: string, record: ArchiveRecord, end: bigint): void {
  const other = listOf(record, 'tags').find((tag) => countOf(tag, 'step_number') >= end);
  if (other === undefined) return;
  throw archiveInvalid(trajectory, `the tag "${textOf(other, 'name')}" points to a step that it does not have`);
}

/** The stored parent of a trajectory that is imported. */
export interface ImportedParent extends TrajectoryRef {
  readonly depth: bigint;
}

/**
 * Returns the parent of a branch whose own steps begin at `begin`. Undefined if the parent was left out. `place` names
 * the branch. Errors: ARCHIVE_INVALID, BRANCH_TOO_DEEP.
 */
export async function findParent(
  scope: ReadScope,
  id: string,
  begin: bigint,
  place: string,
): Promise<ImportedParent | undefined> {
  const columns = ['id', 'tree', 'key', 'depth', 'branch_point', 'next_step_number'] as const;
  const query = byId(scope, 'trajectories', id).select(columns).where('purging', '=', 0);
  const row = await query.executeTakeFirst();
  const ownBegin = row?.branch_point == null ? 0n : row.branch_point + 1n;
  if (row === undefined || begin > row.next_step_number) return undefined;
  if (begin <= ownBegin) throw archiveInvalid(place, 'its branch point is no step of its parent');
  const fault = depthFault(row);
  if (fault !== undefined) throw fault;
  return row;
}

/** Returns the sums before step `begin` of a branch. Errors: ARCHIVE_INVALID. */
export async function sumsBefore(
  { engine, db }: ReadScope,
  { tree, key: owner }: ImportedParent,
  begin: bigint,
  place: string,
): Promise<Sums> {
  const last = { tree, owner, stepNumber: begin - 1n };
  const sums = (await sumsAt({ engine, db }, [last])).get(placeKey(last));
  if (sums === undefined) throw archiveInvalid(place, 'its branch point is not stored');
  return sums;
}

/** Locks the parent against deletion. `id` is that of the branch. Errors: IMPORT_CONFLICT. */
export async function keepParent(tx: NamespaceTransaction, parent: ImportedParent, id: string): Promise<void> {
  if ((await lockTrajectory(tx, parent, 'keep')) === undefined)
    throw importConflict(`Trajectory ${id}`, 'its parent was deleted meanwhile');
}

const NOT_STORED: ReadonlySet<string> = new Set(['RUN_NOT_FOUND', 'EXPERIMENT_NOT_FOUND', 'INVALID_REQUEST']);

/** Locks the run and the experiment of a trajectory against deletion. Errors: ARCHIVE_INVALID. */
export async function lockBelongingOf(
  tx: NamespaceTransaction,
  { run, experiment }: ArchiveRecord,
  place: string,
): Promise<Belonging> {
  try {
    return await lockBelonging(tx, textOrNone(run), textOrNone(experiment));
  } catch (error) {
    if (!(error instanceof AnabranchError) || !NOT_STORED.has(error.reason)) throw error;
    throw archiveInvalid(place, 'its run or its experiment is not stored', error);
  }
}

function textOrNone(value: unknown): string | undefined {
  return typeof value === 'string' && value !== '' ? value : undefined;
}

/** Writes steps that were stored before. Their segments are full already, so they are compressed at once. */
export class RestoredWriter extends StepWriter {
  protected override finished(segments: readonly SegmentRow[]): Promise<readonly SegmentRow[]> {
    const { compressor } = this.engine;
    return Promise.all(
      segments.map(async (row) => {
        const [states, body] = await Promise.all([
          compressedStates(compressor, row.states),
          compressedBody(compressor, row.first_step_number, row.body),
        ]);
        return { ...row, ...states, ...body };
      }),
    );
  }
}
