import { type SqlBool, sql } from 'kysely';
import { type ArchiveRecord, archiveInvalid } from '../../../../domain/archive.ts';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import { keysById } from '../../kit/by_id.ts';
import type { Engine } from '../../kit/engine.ts';
import type { Row } from '../../kit/tables/table.ts';
import type { NamespaceTransaction, ReadScope } from '../../kit/transaction.ts';
import { rangeTable } from '../../log/trajectory/range_table.ts';
import {
  fromRecord,
  NOUNS,
  type Noun,
  type NounName,
  plainColumns,
  type RecordValue,
  type Target,
  toRecord,
} from './nouns.ts';

/** Refers to no row. It is the key of a trajectory that was deleted. */
const NO_KEY = 0n;

const ID = /^[\s\S]{1,512}$/;

/** Keys of rows by id, in the database that is imported into. */
export class RowKeys {
  readonly #tx: NamespaceTransaction;
  readonly #matched: ReadonlyMap<string, string>;
  readonly #found = new Map<Target, Map<string, bigint>>();
  readonly #trajectories = new Map<string, TrajectoryRef>();

  /** `matched` has the stored ids of resources that are stored under other ids than those of records. */
  constructor(tx: NamespaceTransaction, matched: ReadonlyMap<string, string> = new Map()) {
    this.#tx = tx;
    this.#matched = matched;
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
    const known = this.#found.get(target) ?? new Map<string, bigint>();
    this.#found.set(target, known);
    const unknown = ids.filter((id) => !known.has(id));
    const stored = await keysById(
      this.#tx,
      target,
      unknown.map((id) => this.#matched.get(id) ?? id),
    );
    for (const id of unknown) {
      const key = stored.get(this.#matched.get(id) ?? id);
      if (key !== undefined) known.set(id, key);
    }
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

/** Ids of rows by key. */
export interface RowIds {
  readonly of: (target: Target, key: unknown) => string | null;
  readonly ofTrajectory: (key: unknown) => string | null;
}

/** Rows that are read together with what they belong to. */
type ReadRows = readonly (readonly [name: NounName, rows: readonly Row[]])[];

/** Looks the ids up of everything that the rows refer to, in one statement for each table. */
export async function findRowIds({ engine, db }: Pick<ReadScope, 'engine' | 'db'>, read: ReadRows): Promise<RowIds> {
  const wanted = new Map<Target, Set<bigint>>();
  const trajectories = new Map<bigint, TrajectoryRef>();
  for (const [name, rows] of read) {
    const { keys, trajectory }: Noun = NOUNS[name];
    for (const row of rows) {
      for (const [column, target] of Object.entries(keys)) {
        const key = row[column] as bigint | null;
        if (key !== null && key !== 0n) wanted.set(target, (wanted.get(target) ?? new Set()).add(key));
      }
      if (trajectory === undefined) continue;
      const [tree, key] = trajectory.map((column) => row[column] as bigint | null);
      if (tree != null && key != null) trajectories.set(key, { tree, key });
    }
  }
  const found = new Map<Target, ReadonlyMap<bigint, string>>();
  for (const [target, keys] of wanted) {
    const { rows } = await sql<{ key: bigint; id: string }>`
      select x.key, cast(x.id as text) as id from ${engine.sql.table(target)} as x
      where ${engine.sql.among(sql.ref('x.key'), [...keys])}`.execute(db);
    found.set(target, new Map(rows.map(({ key, id }) => [key, id])));
  }
  const ids = await trajectoryIds({ engine, db }, [...trajectories.values()]);
  return {
    of: (target, key) => found.get(target)?.get(key as bigint) ?? null,
    ofTrajectory: (key) => ids.get(key as bigint) ?? null,
  };
}

/** Ids of trajectories by key, which are unique in all trees. Those that were deleted have none. */
export async function trajectoryIds(
  { engine, db }: { readonly engine: Engine; readonly db: ReadScope['db'] },
  refs: readonly TrajectoryRef[],
): Promise<ReadonlyMap<bigint, string>> {
  if (refs.length === 0) return new Map();
  const ranges = refs.map((ref) => ({ ...ref, from: 0n, to: 0n }));
  const { rows } = await sql<{ key: bigint; id: string }>`
    with ${rangeTable(engine, ranges)}
    select t.key, cast(t.id as text) as id from g cross join ${engine.sql.table('trajectories')} as t
    where t.tree = g.tree and t.key = g.key`.execute(db);
  return new Map(rows.map(({ key, id }) => [key, id]));
}

/** Returns the record of a row, without the resources in it. */
export function recordOf(name: NounName, row: Row, ids: RowIds): Readonly<Record<string, RecordValue>> {
  const noun: Noun = NOUNS[name];
  const record: Record<string, RecordValue> = {};
  for (const column of plainColumns(noun)) record[column.name] = toRecord(column, row[column.name]);
  for (const [column, target] of Object.entries(noun.keys)) record[column] = ids.of(target, row[column]);
  if (noun.trajectory !== undefined) record[noun.trajectory[1]] = ids.ofTrajectory(row[noun.trajectory[1]]);
  return record;
}

/** Returns the line of a resource with the resources in it. */
export function lineOf(kind: string, record: object): string {
  return `${JSON.stringify({ record: kind, ...record })}\n`;
}

/** Characters of one record, if it has lists that can be continued. */
const LINE_CHARACTERS = 1024 * 1024;

type Lists = Readonly<Record<string, readonly object[]>>;

/**
 * Returns the lines of a resource with lists of the resources in it. Long lists continue in records "more". The last of
 * each list comes first: with these, the resource is as it should be, also if the others never arrive.
 */
export function linesOf(kind: string, record: { readonly id: unknown }, lists: Lists): string[] {
  const whole = lineOf(kind, { ...record, ...lists });
  if (whole.length <= LINE_CHARACTERS) return [whole];
  const left = new Map(Object.entries(lists).map(([name, items]) => [name, [...items]]));
  const first = [...left].map(([name, items]) => [name, items.splice(-1)] as const);
  const lines = [lineOf(kind, { ...record, ...Object.fromEntries(first) })];
  for (const [name, items] of left) {
    while (items.length > 0) {
      const some: object[] = [];
      for (let characters = 0; items.length > 0 && characters < LINE_CHARACTERS; ) {
        const item = items.pop()!;
        characters += JSON.stringify(item).length;
        some.push(item);
      }
      lines.push(lineOf('more', { of: kind, id: record.id, [name]: some.reverse() }));
    }
  }
  return lines;
}
