import { type SqlBool, sql } from 'kysely';
import { type ArchiveRecord, archiveInvalid } from '../../../../domain/archive.ts';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { NamespaceTransaction } from '../../kit/transaction.ts';
import { NOUNS, type Noun, type NounName, plainColumns, type Target } from './nouns.ts';
import { fromRecord } from './values.ts';

/** Refers to no row. It is the key of a trajectory that was deleted. */
const NO_KEY = 0n;

const ID = /^[\s\S]{1,512}$/;

/** Keys of rows by id, in the database that is imported into. */
export class RowKeys {
  readonly #tx: NamespaceTransaction;
  readonly #found = new Map<Target, Map<string, bigint>>();
  readonly #trajectories = new Map<string, TrajectoryRef>();

  constructor(tx: NamespaceTransaction) {
    this.#tx = tx;
  }

  /** Looks up everything that the records refer to. */
  async find(records: readonly (readonly [name: NounName, records: readonly ArchiveRecord[]])[]): Promise<void> {
    const wanted = new Map<Target, Set<string>>();
    const trajectories = new Set<string>();
    for (const [name, all] of records) {
      const { keys, trajectory }: Noun = NOUNS[name];
      for (const record of all) {
        for (const [column, target] of Object.entries(keys)) {
          const id = record[column];
          if (typeof id === 'string' && ID.test(id)) wanted.set(target, (wanted.get(target) ?? new Set()).add(id));
        }
        const id = trajectory === undefined ? null : record[trajectory[1]];
        if (typeof id === 'string') trajectories.add(id);
      }
    }
    for (const [target, ids] of wanted) await this.add(target, [...ids]);
    await this.#addTrajectories([...trajectories]);
  }

  async add(target: Target, ids: readonly string[]): Promise<void> {
    const { db, namespace } = this.#tx;
    const known = this.#found.get(target) ?? new Map<string, bigint>();
    this.#found.set(target, known);
    const unknown = ids.filter((id) => !known.has(id));
    if (unknown.length === 0) return;
    const rows = await db
      .selectFrom(target as 'stages')
      .select(['id', 'key'])
      .where('namespace', '=', namespace)
      .where('id', 'in', unknown)
      .execute();
    for (const { id, key } of rows) known.set(id, key);
  }

  async #addTrajectories(ids: readonly string[]): Promise<void> {
    if (ids.length === 0) return;
    const { db, namespace } = this.#tx;
    const rows = await db
      .selectFrom('trajectories')
      .select(['id', 'tree', 'key'])
      .where('namespace', '=', namespace)
      .where('id', 'in', ids)
      .where(sql<SqlBool>`not purging`)
      .execute();
    for (const { id, tree, key } of rows) this.#trajectories.set(id, { tree, key });
  }

  /** Errors: ARCHIVE_INVALID. */
  key(target: Target, id: string): bigint {
    const key = this.#found.get(target)?.get(id);
    if (key === undefined) throw archiveInvalid(`"${id}"`, `it is referred to, and not stored in ${target}`);
    return key;
  }

  /** Names a row that is inserted with this key. */
  set(target: Target, id: string, key: bigint): void {
    const known = this.#found.get(target) ?? new Map<string, bigint>();
    this.#found.set(target, known.set(id, key));
  }

  trajectory(id: unknown): TrajectoryRef {
    return this.#trajectories.get(id as string) ?? { tree: NO_KEY, key: NO_KEY };
  }

  /** Returns the columns of a record. Errors: ARCHIVE_INVALID (it refers to something that is not stored). */
  columns(name: NounName, record: ArchiveRecord, place: string): Record<string, unknown> {
    const noun: Noun = NOUNS[name];
    const row: Record<string, unknown> = {};
    for (const column of plainColumns(noun)) row[column.name] = fromRecord(column, record[column.name], place);
    for (const [column, target] of Object.entries(noun.keys)) {
      row[column] = this.#keyOf(target, record[column], noun.table.columns[column]!.nullable ? null : NO_KEY, place);
    }
    if (noun.trajectory === undefined) return row;
    const [tree, key] = noun.trajectory;
    // A rollout that was never claimed has no trajectory.
    const isNone = record[key] === null && noun.table.columns[key]!.nullable && record.attempt === '0';
    const ref = isNone ? { tree: null, key: null } : this.trajectory(record[key]);
    return { ...row, [tree]: ref.tree, [key]: ref.key };
  }

  #keyOf(target: Target, id: unknown, none: null | bigint, place: string): bigint | null {
    if (id === null && (none === null || target === 'stages')) return none;
    const key = typeof id === 'string' ? this.#found.get(target)?.get(id) : undefined;
    if (key === undefined)
      throw archiveInvalid(place, `it refers to ${JSON.stringify(id)} in ${target}, which is not stored`);
    return key;
  }
}
