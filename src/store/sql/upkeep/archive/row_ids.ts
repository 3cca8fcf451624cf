import { sql } from 'kysely';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { Engine } from '../../kit/engine.ts';
import type { Row } from '../../kit/tables/table.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { rangeTable } from '../../log/trajectory/range_table.ts';
import { NOUNS, type Noun, type NounName, plainColumns, type Target } from './nouns.ts';
import { type RecordValue, toRecord } from './values.ts';

/** Ids of rows by key. */
export interface RowIds {
  readonly of: (target: Target, key: unknown) => string | null;
  readonly ofTrajectory: (key: unknown) => string | null;
}

/** Rows that are read together with what they belong to. */
export type ReadRows = readonly (readonly [name: NounName, rows: readonly Row[]])[];

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
      select x.key, cast(x.id as text) as id from ${engine.table(target)} as x
      where ${engine.among(sql.ref('x.key'), [...keys])}`.execute(db);
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
    select t.key, cast(t.id as text) as id from g cross join ${engine.table('trajectories')} as t
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
