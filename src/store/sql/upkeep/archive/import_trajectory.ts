import { createHash, randomUUID } from 'node:crypto';
import { sql } from 'kysely';
import { type ArchiveRecord, archiveInvalid, importConflict, importSuperseded } from '../../../../domain/archive.ts';
import { trajectoryHint } from '../../../../domain/change.ts';
import { hasRow, isKept, type NewState } from '../../../../domain/step.ts';
import { rowStates } from '../../../../domain/step_codec/packed_step.ts';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import { byId } from '../../kit/by_id.ts';
import { NO_SUMS, type Sums, sumColumns } from '../../kit/running_sums.ts';
import { STATUS_CHANGES } from '../../kit/tables/changes.ts';
import type { RowOf } from '../../kit/tables/table.ts';
import { TAGS, TRAJECTORIES, TRAJECTORY_IMPORTS } from '../../kit/tables/trajectories.ts';
import { type NamespaceTransaction, scopeOf, writeIn } from '../../kit/transaction.ts';
import { UniqueViolation } from '../../kit/unique_violation.ts';
import { isSet, readList } from '../../kit/values.ts';
import type { StatesEngine } from '../../log/engine.ts';
import type { EncodedState } from '../../log/states/bytes.ts';
import type { StateEncoder } from '../../log/states/encoder.ts';
import { ReferredStates } from '../../log/states/referred_states.ts';
import { lockTrajectory } from '../trajectory/purge_marks.ts';
import { discardImport, renewStatesOf } from './discarded_imports.ts';
import { type TrajectoryLine, trajectoryDigest, trajectoryRecord } from './export_trajectory.ts';
import { countOf, fromRecord, NOUNS, plainColumns, rowsIn, textOf } from './nouns.ts';
import { StepsDigest, StoredComparison } from './step_chunks.ts';
import {
  findParent,
  HeldSteps,
  type ImportedParent,
  keepParent,
  lockBelongingOf,
  RestoredWriter,
  requireAgreement,
  requireSteps,
  type StepsToImport,
  sumsBefore,
} from './trajectory_parts.ts';

/** What all trajectories of an import share. */
export interface ImportParts {
  readonly engine: StatesEngine;
  readonly encoder: StateEncoder;
  readonly namespace: string;
  readonly matched: ReadonlyMap<string, string>;
  /** Returns a row key that is greater than `above`. */
  nextKey(above: bigint): Promise<bigint>;
}

/**
 * Imports one trajectory, whole or not at all. A small trajectory is written in one transaction. For
 * larger ones, bounded transactions write hidden rows, and the last one shows them. What an interrupted import left is
 * removed by the next import of the trajectory, or by maintenance after a day.
 */
export class TrajectoryImport {
  readonly id: string;
  readonly #parts: ImportParts;
  readonly #record: ArchiveRecord;
  /** Of the line of the trajectory, the lines of its further tags, and the digest of its steps. */
  readonly #trajectoryDigest = createHash('sha256');
  readonly #digest = new StepsDigest();
  readonly #begin: bigint;
  readonly #hidden: boolean;
  #parent: ImportedParent | undefined;
  #ref: TrajectoryRef | undefined;
  /** The trajectory is stored already: its steps are only compared. */
  #stored: { readonly ref: TrajectoryRef; readonly comparison: StoredComparison } | undefined;
  #next: bigint;
  #sums: Sums = NO_SUMS;
  /** Parts that arrived and are not written yet. */
  #held = new HeldSteps();
  /** The parts before them, while they are written. */
  #writing: Promise<void> | undefined;
  #isStaged = false;
  #isIdentical = false;

  constructor(parts: ImportParts, record: ArchiveRecord, line: string) {
    this.#parts = parts;
    this.#record = record;
    this.id = textOf(record, 'id');
    this.#hidden = record.hidden === true;
    this.#begin = record.branch_point === null ? 0n : countOf(record, 'branch_point') + 1n;
    this.#next = this.#begin;
    if ((record.parent === null) !== (record.branch_point === null)) {
      throw archiveInvalid(this.#place, 'it has a parent without branch point, or the reverse');
    }
    requireSteps(this.#place, record, this.#end);
    this.#trajectoryDigest.update(line);
  }

  get #place(): string {
    return `trajectory ${this.id}`;
  }

  get isStored(): boolean {
    return this.#stored !== undefined;
  }

  /** The stored trajectory is equal in everything that archives have. */
  get isIdentical(): boolean {
    return this.#isIdentical;
  }

  get steps(): bigint {
    return this.#next - this.#begin;
  }

  /** Returns false if the trajectory cannot be imported because its parent was left out. */
  async prepare(): Promise<boolean> {
    const { engine, namespace, nextKey } = this.#parts;
    const scope = scopeOf(engine, namespace);
    for (;;) {
      const row = await byId(scope, 'trajectories', this.id)
        .select(['tree', 'key', 'hidden', 'purging', 'next_step_number'])
        .executeTakeFirst();
      if (row === undefined) break;
      // A hidden trajectory must have the steps that the archive has.
      const isWhole = row.next_step_number >= this.#end && !isSet(row.purging);
      if (!isSet(row.hidden) || (this.#hidden && isWhole)) {
        this.#stored = { ref: row, comparison: new StoredComparison(scope, row) };
        return true;
      }
      if (!(await discardImport(engine, row))) {
        throw importConflict(
          `Trajectory ${this.id}`,
          'its id belongs to a deleted trajectory whose steps are still needed or being removed',
        );
      }
    }
    if (this.#record.parent !== null) {
      this.#parent = await findParent(scope, textOf(this.#record, 'parent'), this.#begin, this.#place);
      if (this.#parent === undefined) return false;
    }
    const key = await nextKey(this.#parent?.key ?? 0n);
    this.#ref = { tree: this.#parent?.tree ?? key, key };
    if (this.#parent !== undefined) this.#sums = await sumsBefore(scope, this.#parent, this.#begin, this.#place);
    return true;
  }

  /** The stored id of its experiment. */
  get #experiment(): unknown {
    const { experiment } = this.#record;
    return this.#parts.matched.get(experiment as string) ?? experiment;
  }

  get #end(): bigint {
    return countOf(this.#record, 'next_step_number');
  }

  /**
   * Adds the next steps. Errors: ARCHIVE_INVALID, IMPORT_CONFLICT, IMPORT_SUPERSEDED, STATE_NOT_FOUND, STORAGE_FULL.
   */
  async add(part: StepsToImport): Promise<void> {
    const first = part.steps[0]?.packed.stepNumber;
    if (first !== this.#next)
      throw archiveInvalid(this.#place, `step ${first ?? 'none'} follows step ${this.#next - 1n}`);
    if (part.attached.some(({ stepNumber }) => stepNumber < first || stepNumber >= first + BigInt(part.steps.length))) {
      throw archiveInvalid(this.#place, 'a state is attached to a step of another part');
    }
    const received = { first, bytes: part.bytes, ends: part.ends, attached: part.attached };
    this.#digest.add(received);
    this.#next += BigInt(part.steps.length);
    if (this.#stored !== undefined) {
      const other = await this.#stored.comparison.firstDifference(received);
      if (other === undefined) return;
      throw importConflict(
        `Trajectory ${this.id}`,
        `a trajectory with this id is stored, and has another step ${other}`,
      );
    }
    if (!this.#held.hasRoomFor(part)) await this.#beginWriting();
    this.#held.add(part);
  }

  /**
   * Begins to write the held parts. The caller decodes the next ones meanwhile, and the next call reports a failure.
   */
  async #beginWriting(): Promise<void> {
    await this.#writing;
    if (this.#held.steps.length === 0) return;
    this.#writing = this.#flush(this.#held);
    this.#writing.catch(() => {});
    this.#held = new HeldSteps();
  }

  /** Adds tags that have no room in the record of the trajectory. They follow its steps. Errors: as `add`. */
  async addTags(record: ArchiveRecord, line: string): Promise<void> {
    if (record.trajectory !== this.id || this.#next !== this.#end)
      throw archiveInvalid(this.#place, 'tags do not follow its steps');
    requireSteps(this.#place, record, this.#end);
    this.#trajectoryDigest.update(line);
    if (this.#stored !== undefined) return;
    await this.#beginWriting();
    await this.#writing;
    if (!this.#isStaged) await this.#transact((tx) => this.#insert(tx, true));
    this.#isStaged = true;
    await this.#transact(async (tx) => {
      await this.#lockStaged(tx);
      await this.#insertTags(tx, record);
    });
  }

  /** Ends the trajectory. Errors: as `add`. */
  async finish(end: ArchiveRecord): Promise<void> {
    const steps = this.#digest.finish();
    if (this.#next !== this.#end)
      throw archiveInvalid(this.#place, `its steps end at ${this.#next}, not at ${this.#end}`);
    if (end.steps_digest !== steps || end.digest !== this.#trajectoryDigest.update(steps).digest('hex')) {
      throw archiveInvalid(this.#place, 'it does not match its digest');
    }
    if (this.#stored !== undefined) {
      const { ref, comparison } = this.#stored;
      const scope = scopeOf(this.#parts.engine, this.#parts.namespace);
      const there = await trajectoryRecord(scope, { ...ref, end: this.#end, hidden: this.#hidden });
      this.#isIdentical =
        comparison.finish() === steps &&
        there !== undefined &&
        end.digest === trajectoryDigest(this.#asSent(there), steps);
      return;
    }
    await this.#writing;
    await this.#encoded(this.#held, async (inline) => {
      await this.#transact(async (tx) => {
        if (this.#isStaged) await this.#lockStaged(tx);
        else await this.#insert(tx, false);
        const isEmpty = this.#held.steps.length === 0;
        const sums = isEmpty ? this.#sums : await this.#write(tx, this.#held, inline);
        await this.#show(tx, sums);
      });
    });
    this.#parts.engine.changes.announce([trajectoryHint(this.#ref!.key)]);
  }

  /** Returns the line of the stored trajectory with the id that the archive has of its experiment. */
  #asSent(there: TrajectoryLine): TrajectoryLine {
    const [stored, sent] = [this.#experiment, this.#record.experiment].map(
      (id) => `"experiment":${JSON.stringify(id)}`,
    );
    return stored === sent ? there : { ...there, line: there.line.replace(stored!, sent!) };
  }

  /** Removes the rows that were written so far. */
  async discard(): Promise<void> {
    await this.#writing?.catch(() => {});
    // The call may have ended.
    if (this.#isStaged) await discardImport(this.#parts.engine.within(undefined), this.#ref!);
  }

  /**
   * Removes a trajectory that the archive leaves out. Returns the states that arrived and were not stored with steps.
   */
  async leaveOut(): Promise<readonly NewState[]> {
    await this.#writing;
    const { engine, namespace } = this.#parts;
    if (this.#isStaged) await renewStatesOf(engine, namespace, this.#ref!, this.#begin, this.#next);
    await this.discard();
    return this.#held.inline;
  }

  async #flush(held: HeldSteps): Promise<void> {
    const { engine } = this.#parts;
    if (!this.#isStaged) {
      // The encoder finds the states of the lineage by the row.
      await this.#transact((tx) => this.#insert(tx, true));
      this.#isStaged = true;
    }
    this.#sums = await this.#encoded(held, (inline) =>
      this.#transact(async (tx) => {
        await this.#lockStaged(tx);
        const sums = await this.#write(tx, held, inline);
        await this.#move(tx, sums, { next_step_number: held.steps.at(-1)!.packed.stepNumber + 1n });
        await tx.db
          .updateTable('trajectory_imports')
          .set({ renew_time: engine.sql.now })
          .where('tree', '=', this.#ref!.tree)
          .where('trajectory', '=', this.#ref!.key)
          .execute();
        return sums;
      }),
    );
  }

  /** Encodes inline states as appends do, so that they are stored as changes of earlier ones. */
  async #encoded<T>(held: HeldSteps, store: (inline: readonly EncodedState[]) => Promise<T>): Promise<T> {
    const { inline: states } = held;
    const { engine, encoder, namespace } = this.#parts;
    if (states.length > 0 && !this.#isStaged && this.#parent !== undefined) {
      await this.#transact((tx) => this.#insert(tx, true));
      this.#isStaged = true;
    }
    const steps = held.steps.map(({ packed }) => packed);
    const batch = { caller: { namespace }, ref: this.#ref!, steps, states };
    const outcomes = await encoder.store(engine, [batch], async (inline) => {
      return [{ kind: 'committed' as const, result: await store(inline.flat()) }];
    });
    return outcomes[0]!.result;
  }

  /** Writes steps. Returns the sums after them. */
  async #write(
    tx: NamespaceTransaction<StatesEngine>,
    held: HeldSteps,
    inline: readonly EncodedState[],
  ): Promise<Sums> {
    const { namespace } = this.#parts;
    const { steps, attached } = held;
    const [first, ref] = [steps[0]!.packed.stepNumber, this.#ref!];
    const referred = new ReferredStates(tx);
    const named = attached.flatMap(({ state }) => (hasRow(state) ? [state.digest] : []));
    await referred.find(namespace, [...steps.flatMap(({ packed }) => rowStates(packed)), ...named]);
    await tx.readNow();
    const writer = new RestoredWriter(tx, referred);
    const here = new Set(inline.map(({ digest }) => digest));
    const names = Map.groupBy(attached, ({ stepNumber }) => stepNumber);
    const owner = {
      ...ref,
      namespace,
      writerEpoch: countOf(this.#record, 'writer_epoch'),
      scoredMetrics: readList(textOf(this.#record, 'scored_metrics')),
      restored: {
        commitOf: (number: bigint) => steps[Number(number - first)]!,
        attachedTo: (number: bigint) =>
          (names.get(number) ?? []).filter(({ state }) => isKept(state)).map(({ state }) => state.name),
        sentBytes: (number: bigint) => steps[Number(number - first)]!.sentBytes,
      },
    };
    const sizes = referred.sizes(namespace);
    const missing =
      steps.flatMap(({ packed }) => writer.missingState(namespace, packed, here) ?? [])[0] ??
      named.find((digest) => !here.has(digest) && !sizes.has(digest));
    if (missing !== undefined) throw archiveInvalid(this.#place, `the bytes of state ${missing} are missing`);
    requireAgreement(this.#place, owner.writerEpoch, held, sizes, inline);
    let sums = this.#sums;
    // The first call adds the states.
    for (const [i, { packed, rewardSum }] of steps.entries()) {
      sums = writer.add(owner, sums, [packed], i === 0 ? inline : []);
      if (!Object.is(sums.rewardSum, rewardSum)) {
        throw archiveInvalid(`step ${packed.stepNumber} of ${this.#place}`, 'its reward sum is wrong');
      }
    }
    for (const { stepNumber, state } of attached) writer.attach(namespace, ref, stepNumber, state, []);
    await writer.write();
    return sums;
  }

  /** Errors: IMPORT_SUPERSEDED, ARCHIVE_INVALID. */
  async #transact<T>(work: (tx: NamespaceTransaction<StatesEngine>) => Promise<T>): Promise<T> {
    const { engine, namespace } = this.#parts;
    try {
      return await writeIn(engine, namespace, work);
    } catch (error) {
      if (!(error instanceof UniqueViolation)) throw error;
      const stored = byId(scopeOf(engine, namespace), 'trajectories', this.id).select('key');
      const isOther = ((await stored.executeTakeFirst())?.key ?? this.#ref!.key) !== this.#ref!.key;
      throw isOther ? importSuperseded(this.id) : archiveInvalid(this.#place, 'a tag or a state is in it twice', error);
    }
  }

  /** Inserts the row, with its history. */
  async #insert(tx: NamespaceTransaction, isStaged: boolean): Promise<void> {
    const record = this.#record;
    const { tree, key } = this.#ref!;
    const belonging = await lockBelongingOf(tx, { ...record, experiment: this.#experiment }, this.#place);
    if (this.#parent !== undefined) await keepParent(tx, this.#parent, this.id);
    const columns = plainColumns(NOUNS.trajectory).map((column) => {
      return [column.name, fromRecord(column, record[column.name], this.#place)];
    });
    const row = {
      ...Object.fromEntries(columns),
      tree,
      key,
      namespace: tx.namespace,
      uid: randomUUID(),
      parent: this.#parent?.key ?? null,
      ...belonging,
      depth: this.#parent === undefined ? 0n : this.#parent.depth + 1n,
      hidden: 1,
      purging: 0,
      trimming: 0,
      // An import that is discarded is no deletion.
      created_by_open: 0,
      merged_to: this.#begin,
      indexed_to: this.#begin,
      next_step_number: this.#begin,
      ...sumColumns(this.#sums),
    } as unknown as RowOf<typeof TRAJECTORIES>;
    await tx.engine.bulk.insert(tx.db, TRAJECTORIES, [row]);
    const entity = { tree, entity_kind: 'TRAJECTORY', entity: key, namespace: tx.namespace };
    await tx.engine.bulk.insert(tx.db, STATUS_CHANGES, rowsIn(record, 'history', 'status_change', entity));
    if (isStaged || this.#hidden) {
      const now = await tx.readNow();
      const begun = { tree, trajectory: key, namespace: tx.namespace, renew_time: now };
      await tx.engine.bulk.insert(tx.db, TRAJECTORY_IMPORTS, [begun]);
    }
  }

  /** Locks the row, if this import still owns it. */
  async #lockStaged(tx: NamespaceTransaction): Promise<void> {
    if ((await lockTrajectory(tx, this.#ref!, 'write')) === undefined) throw importSuperseded(this.id);
  }

  async #show(tx: NamespaceTransaction, sums: Sums): Promise<void> {
    const { tree, key } = this.#ref!;
    const end = { next_step_number: this.#end, hidden: this.#hidden ? (1 as const) : (0 as const) };
    const created_by_open = this.#record.created_by_open === true ? (1 as const) : (0 as const);
    await this.#move(tx, sums, { ...end, merged_to: this.#end, indexed_to: this.#end, created_by_open });
    await this.#insertTags(tx, this.#record);
    if (this.#hidden) return;
    // Its hidden ancestors are needed from now on.
    await sql`with recursive chain(key, parent) as (
        select t.key, t.parent from ${tx.engine.sql.table('trajectories')} as t
          where t.tree = ${tree} and t.key = ${key}
        union all
        select t.key, t.parent from chain as c cross join ${tx.engine.sql.table('trajectories')} as t
        where t.tree = ${tree} and t.key = c.parent)
      delete from ${tx.engine.sql.table('trajectory_imports')}
      where tree = ${tree} and trajectory in (select key from chain)`.execute(tx.db);
  }

  async #insertTags(tx: NamespaceTransaction, record: ArchiveRecord): Promise<void> {
    const { tree, key } = this.#ref!;
    const owner = { tree, trajectory: key, namespace: tx.namespace };
    await tx.engine.bulk.insert(tx.db, TAGS, rowsIn(record, 'tags', 'tag', owner));
  }

  async #move(tx: NamespaceTransaction, sums: Sums, columns: object): Promise<void> {
    await tx.db
      .updateTable('trajectories')
      .set({ ...sumColumns(sums), ...columns })
      .where('tree', '=', this.#ref!.tree)
      .where('key', '=', this.#ref!.key)
      .execute();
  }
}
