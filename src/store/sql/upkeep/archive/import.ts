import {
  ARCHIVE_FORMAT,
  ARCHIVE_VERSION,
  type ArchiveRecord,
  archiveInvalid,
  type CheckedPart,
  type CheckedRecords,
  type ImportedParts,
  type ImportProgress,
  NO_COUNTS,
} from '../../../../domain/archive.ts';
import { writeIn } from '../../kit/transaction.ts';
import type { StatesEngine } from '../../log/engine.ts';
import type { StateEncoder } from '../../log/states/encoder.ts';
import { checkedPart } from './checked_parts.ts';
import { importRecords } from './import_rows.ts';
import { TrajectoryImport } from './import_trajectory.ts';
import { readAttached, readSteps } from './imported_steps.ts';
import type { MatchedIds } from './matched.ts';
import { ROW_KINDS, textOf } from './nouns.ts';
import { PendingStates } from './pending_states.ts';
import { MOST_LEFT_OUT } from './record_checks.ts';
import type { AttachedToStep } from './step_chunks.ts';

/** Row keys of trajectories that are taken at once. */
const KEYS = 100;

/**
 * V6: imports an archive into the namespace that it was exported from. What is stored already is compared and left as
 * it is, so an interrupted import can be repeated. Errors: ARCHIVE_INVALID, IMPORT_CONFLICT, IMPORT_SUPERSEDED,
 * STORAGE_FULL. What precedes an error stays imported.
 */
export async function* importArchive(
  engine: StatesEngine,
  encoder: StateEncoder,
  namespace: string,
  parts: ImportedParts,
): AsyncGenerator<ImportProgress, void, undefined> {
  const run = new Import(engine, encoder, namespace);
  try {
    for await (const part of parts) {
      for (const each of 'checked' in part ? [part] : checkedPart(part)) {
        // Without it, SQLite stores all parts that have arrived in one iteration of the event loop.
        await engine.slots.take(namespace, engine.transactions);
        await run.add(each);
      }
      yield run.progress;
    }
    run.requireEnd();
    yield run.progress;
  } catch (error) {
    await run.abort();
    throw error;
  }
}

class Import {
  readonly #engine: StatesEngine;
  readonly #encoder: StateEncoder;
  readonly #namespace: string;
  readonly #states: PendingStates;
  #begun = false;
  #ended = false;
  #trajectory: TrajectoryImport | undefined;
  /** Id of a trajectory that is not imported, because its parent was left out. */
  #skipped: string | undefined;
  #attached: ArchiveRecord | undefined;
  readonly #matched: MatchedIds = new Map();
  readonly #leftOut: string[] = [];
  #keys: bigint[] = [];
  #progress: ImportProgress = { ...NO_COUNTS, presentTrajectories: 0n, identicalTrajectories: 0n, leftOut: [] };

  constructor(engine: StatesEngine, encoder: StateEncoder, namespace: string) {
    this.#engine = engine;
    this.#encoder = encoder;
    this.#namespace = namespace;
    this.#states = new PendingStates(engine, namespace);
  }

  get progress(): ImportProgress {
    return { ...this.#progress, states: this.#states.count, leftOut: this.#leftOut };
  }

  async add({ checked: part }: CheckedPart): Promise<void> {
    if (this.#ended) throw archiveInvalid('the end', 'more follows after the last record');
    if (part.kind === 'checked_records') return this.#records(part);
    if (!this.#begun) throw archiveInvalid('the beginning', 'the record "archive" is missing');
    if (part.kind === 'state') return this.#states.add(part);
    if (part.kind === 'small_states') return this.#states.addSmall(part);
    const { inline, small, smallBytes } = this.#states.take();
    const attached = this.#takeAttached(small);
    const isCurrent = this.#trajectory?.id === part.trajectoryId;
    if (!isCurrent && this.#skipped !== part.trajectoryId) {
      throw archiveInvalid(
        `steps of trajectory ${part.trajectoryId}`,
        'they do not follow the record of the trajectory',
      );
    }
    const read = await readSteps(part, small, () =>
      this.#engine.slots.take(this.#namespace, this.#engine.transactions),
    );
    if (this.#trajectory === undefined || this.#trajectory.isStored) await this.#states.keep(inline);
    await this.#trajectory?.add({ ...read, bytes: part.bytes, attached, inline, smallBytes });
  }

  /** Errors: ARCHIVE_INVALID. */
  requireEnd(): void {
    if (!this.#ended) throw archiveInvalid('the end', 'it is cut off');
  }

  /** Removes what is not whole. What this cannot remove now, a repeated import or maintenance removes. */
  async abort(): Promise<void> {
    try {
      await this.#states.abort();
      await this.#trajectory?.discard();
    } catch {
      // The error that ended the import is reported.
    }
  }

  #takeAttached(small: ReadonlyMap<string, Uint8Array>): AttachedToStep[] {
    const record = this.#attached;
    this.#attached = undefined;
    return record === undefined ? [] : readAttached(record, small);
  }

  async #records({ records, text }: CheckedRecords): Promise<void> {
    const [first] = records;
    if (first === undefined) return;
    if (!this.#begun) {
      this.#begin(first);
      if (records.length > 1) throw archiveInvalid('the beginning', 'its record is there twice');
    } else if (ROW_KINDS.has(first.record)) await this.#rows(first.record, records);
    else await this.#record(first, text);
  }

  async #rows(kind: string, records: readonly ArchiveRecord[]): Promise<void> {
    this.#requireNoTrajectory(kind);
    const stored = BigInt(await importRecords(this.#engine, this.#namespace, kind, records, this.#matched));
    if (kind === 'run') this.#progress = { ...this.#progress, runs: this.#progress.runs + stored };
    if (kind === 'rollout') this.#progress = { ...this.#progress, rollouts: this.#progress.rollouts + stored };
  }

  #begin(record: ArchiveRecord): void {
    const { record: kind, format, version, namespace } = record;
    if (kind !== 'archive' || format !== ARCHIVE_FORMAT) throw archiveInvalid('the beginning', 'it is no archive');
    if (version !== ARCHIVE_VERSION) {
      throw archiveInvalid(
        'the beginning',
        `its version is ${JSON.stringify(version)}, and this server reads ${ARCHIVE_VERSION}`,
      );
    }
    if (namespace !== this.#namespace) {
      throw archiveInvalid(
        'the beginning',
        `it is of namespace ${JSON.stringify(namespace)}, not of "${this.#namespace}"`,
      );
    }
    this.#begun = true;
  }

  async #record(record: ArchiveRecord, line: string): Promise<void> {
    switch (record.record) {
      case 'trajectory':
        return this.#beginTrajectory(record, line);
      case 'state_left_out':
        return this.#states.leaveOut(textOf(record, 'digest'));
      case 'attached_states':
        if (this.#attached !== undefined) throw archiveInvalid('record "attached_states"', 'no steps follow it');
        this.#attached = record;
        return;
      case 'tags':
        if (this.#trajectory === undefined && this.#skipped === undefined)
          throw archiveInvalid('record "tags"', 'it does not follow a trajectory');
        return this.#trajectory?.addTags(record, line);
      case 'trajectory_end':
        return this.#endTrajectory(record);
      case 'end':
        this.#requireNoTrajectory('end');
        this.#states.refuseUnfinished();
        this.#ended = true;
        return;
      default:
        throw archiveInvalid(`record "${record.record}"`, 'this kind is not known');
    }
  }

  #requireNoTrajectory(kind: string): void {
    const open = this.#trajectory?.id ?? this.#skipped;
    if (open !== undefined) throw archiveInvalid(`record "${kind}"`, `trajectory ${open} has not ended`);
  }

  async #beginTrajectory(record: ArchiveRecord, line: string): Promise<void> {
    this.#requireNoTrajectory('trajectory');
    const parts = {
      engine: this.#engine,
      encoder: this.#encoder,
      namespace: this.#namespace,
      matched: this.#matched,
      nextKey: (above: bigint) => this.#nextKey(above),
    };
    const begun = new TrajectoryImport(parts, record, line);
    if (await begun.prepare()) this.#trajectory = begun;
    else this.#skipped = begun.id;
  }

  async #endTrajectory(record: ArchiveRecord): Promise<void> {
    const id = textOf(record, 'id');
    const trajectory = this.#trajectory;
    if ((trajectory?.id ?? this.#skipped) !== id)
      throw archiveInvalid(`the end of trajectory ${id}`, 'it has not begun');
    if (trajectory === undefined || record.left_out === true) {
      await this.#states.keep((await trajectory?.leaveOut()) ?? []);
      if (this.#leftOut.length < MOST_LEFT_OUT) this.#leftOut.push(id);
    } else {
      await trajectory.finish(record);
      const { presentTrajectories, identicalTrajectories: same, trajectories, steps } = this.#progress;
      const identicalTrajectories = trajectory.isIdentical ? same + 1n : same;
      this.#progress = trajectory.isStored
        ? { ...this.#progress, presentTrajectories: presentTrajectories + 1n, identicalTrajectories }
        : { ...this.#progress, trajectories: trajectories + 1n, steps: steps + trajectory.steps };
    }
    this.#trajectory = undefined;
    this.#skipped = undefined;
  }

  /** Parents have lower keys than their branches. */
  async #nextKey(above: bigint): Promise<bigint> {
    let key = this.#keys.shift();
    while (key === undefined || key <= above) {
      this.#keys = await writeIn(this.#engine, this.#namespace, (tx) =>
        this.#engine.keys.nextMany(tx.db, 'trajectories', KEYS),
      );
      key = this.#keys.shift();
    }
    return key;
  }
}
