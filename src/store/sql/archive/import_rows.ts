import { archiveInvalid, importConflict } from '../../../domain/archive.ts';
import type { Engine } from '../engine.ts';
import { ATTEMPTS, VALIDATION_OVERRIDES, VALIDATIONS } from '../tables/attempts.ts';
import { STATUS_CHANGES } from '../tables/changes.ts';
import { METRIC_POINTS } from '../tables/metrics.ts';
import { ROLLOUT_CANCELLATIONS, ROLLOUT_ENVIRONMENTS } from '../tables/rollouts.ts';
import type { RowOf, Table } from '../tables/table.ts';
import { DELETED_TRAJECTORIES } from '../tables/trajectories.ts';
import { type NamespaceTransaction, writeIn } from '../transaction.ts';
import { UniqueViolation } from '../unique_violation.ts';
import { rowsIn } from './nested_rows.ts';
import { NOUNS, type NounName, plainColumns, type Target } from './nouns.ts';
import { RowKeys } from './row_keys.ts';
import { type ArchiveRecord, fromRecord, listOf, realFromRecord, textOf } from './values.ts';

/** Records whose rows have ids, with the table and the entity of their history. */
const WITH_ID = {
  task: { target: 'tasks', history: undefined },
  validator: { target: 'validators', history: undefined },
  experiment: { target: 'experiments', history: undefined },
  run: { target: 'runs', history: 'RUN' },
  stage: { target: 'stages', history: 'STAGE' },
  environment: { target: 'environments', history: 'ENVIRONMENT' },
  group: { target: 'groups', history: undefined },
  rollout: { target: 'rollouts', history: 'ROLLOUT' },
} as const satisfies Partial<Record<NounName, { target: Target; history: string | undefined }>>;

type WithId = keyof typeof WITH_ID;

/** Kinds of records that `importRecords` stores. */
export const ROW_KINDS: ReadonlySet<string> = new Set([
  ...Object.keys(WITH_ID),
  ...['cancellation', 'metric_points', 'main_trajectory', 'deleted_trajectory'],
]);

/** What a rollout contains, and the tables of it. */
const IN_ROLLOUT = [
  ['attempts', 'attempt', ATTEMPTS],
  ['validations', 'validation', VALIDATIONS],
  ['overrides', 'override', VALIDATION_OVERRIDES],
  ['environments', 'rollout_environment', ROLLOUT_ENVIRONMENTS],
] as const;

/** Columns that must be equal if a resource with the id is stored already. */
const IDENTITY = ['create_time'] as const;

/**
 * Stores records of one kind in one transaction, each with everything in it. Those that are stored already are left as
 * they are. Returns how many were stored. Errors: ARCHIVE_INVALID, IMPORT_CONFLICT, STORAGE_FULL.
 */
export async function importRecords(
  engine: Engine,
  namespace: string,
  kind: string,
  records: readonly ArchiveRecord[],
): Promise<number> {
  try {
    return await writeIn(engine, namespace, (tx) => store(tx, kind, records));
  } catch (error) {
    if (!(error instanceof UniqueViolation)) throw error;
    const named = records.map((record) => record.id ?? record.run).join(', ');
    throw importConflict(`A ${kind} (${named})`, 'its name or number belongs to another one in the database');
  }
}

async function store(tx: NamespaceTransaction, kind: string, records: readonly ArchiveRecord[]): Promise<number> {
  if (kind === 'metric_points') return storePoints(tx, records);
  if (kind === 'main_trajectory') return storeMain(tx, records);
  if (kind === 'cancellation') return storeCancellations(tx, records);
  if (kind === 'deleted_trajectory') return storeDeleted(tx, records);
  return storeWithId(tx, kind as WithId, records);
}

async function storeWithId(tx: NamespaceTransaction, kind: WithId, all: readonly ArchiveRecord[]): Promise<number> {
  const { target, history } = WITH_ID[kind];
  const keys = new RowKeys(tx);
  const records = await missing(tx, kind, all);
  if (records.length === 0) return 0;
  await keys.find([
    [kind, records],
    ...(kind === 'rollout' ? IN_ROLLOUT : []).map(([field, name]) => {
      return [name, records.flatMap((record) => listOf(record, field))] as const;
    }),
  ]);
  await tx.readNow();
  const mark = await tx.readMark();
  const own = await tx.engine.nextKeys(tx.db, target, records.length);
  for (const [i, record] of records.entries()) keys.set(target, textOf(record, 'id'), own[i]!);
  const { table } = NOUNS[kind];
  const rows = records.map((record, i) => {
    const set = { key: own[i]!, namespace: tx.namespace, mark, hidden: 0, main_tree: null, main_trajectory: null };
    return { ...set, ...keys.columns(kind, record, `${kind} ${textOf(record, 'id')}`) };
  });
  await insert(tx, table, rows);
  for (const [i, record] of records.entries()) {
    if (history !== undefined) await storeHistory(tx, history, rows[i]!, record);
  }
  if (kind === 'rollout') await storeParts(tx, keys, records, own);
  tx.engine.announce(rows.flatMap((row) => ('run' in row ? [row.run as bigint] : [])));
  return records.length;
}

/** Returns the records whose ids are not stored. Errors: IMPORT_CONFLICT (another resource has the id). */
async function missing(
  tx: NamespaceTransaction,
  kind: WithId,
  all: readonly ArchiveRecord[],
): Promise<ArchiveRecord[]> {
  const ids = all.map((record) => textOf(record, 'id'));
  const found = await tx.db
    .selectFrom(WITH_ID[kind].target as 'stages')
    .select(['id', ...IDENTITY])
    .where('namespace', '=', tx.namespace)
    .where('id', 'in', ids)
    .execute();
  const stored = new Map(found.map((row) => [row.id, row]));
  const columns = plainColumns(NOUNS[kind]);
  const seen = new Set<string>();
  return all.filter((record, i) => {
    const id = ids[i]!;
    const row = stored.get(id);
    if (row === undefined) return seen.size < seen.add(id).size;
    for (const name of IDENTITY) {
      const column = columns.find((each) => each.name === name)!;
      const sent = fromRecord(column, record[name], `${kind} ${id}`) as string;
      if (Date.parse(sent) !== Date.parse(row[name])) {
        throw importConflict(`The ${kind} ${id}`, 'another one with this id is stored');
      }
    }
    return false;
  });
}

async function insert(tx: NamespaceTransaction, table: Table, rows: readonly Record<string, unknown>[]): Promise<void> {
  await tx.engine.insertRows(tx.db, table, rows as unknown as RowOf<Table>[]);
}

async function storeHistory(
  tx: NamespaceTransaction,
  entity_kind: string,
  row: Readonly<Record<string, unknown>>,
  record: ArchiveRecord,
): Promise<void> {
  const tree = entity_kind === 'RUN' ? row.key : row.run;
  const of = { tree, entity_kind, entity: row.key, namespace: tx.namespace };
  await tx.engine.insertRows(tx.db, STATUS_CHANGES, rowsIn(record, 'history', 'status_change', of));
}

async function storeParts(
  tx: NamespaceTransaction,
  keys: RowKeys,
  records: readonly ArchiveRecord[],
  own: readonly bigint[],
): Promise<void> {
  for (const [field, name, table] of IN_ROLLOUT) {
    const rows = records.flatMap((record, i) =>
      listOf(record, field).map((part) => {
        const place = `${name} of rollout ${textOf(record, 'id')}`;
        return { rollout: own[i]!, namespace: tx.namespace, ...keys.columns(name, part, place) };
      }),
    );
    await insert(tx, table, rows);
  }
}

async function storePoints(tx: NamespaceTransaction, records: readonly ArchiveRecord[]): Promise<number> {
  const keys = new RowKeys(tx);
  for (const record of records) {
    const [run, name] = [textOf(record, 'run'), textOf(record, 'name')];
    const stage = record.stage === null ? undefined : textOf(record, 'stage');
    await keys.add('runs', [run]);
    if (stage !== undefined) await keys.add('stages', [stage]);
    const of = { run: keys.key('runs', run), stage: stage === undefined ? 0n : keys.key('stages', stage), name };
    const points = record.points;
    if (!Array.isArray(points)) throw archiveInvalid('record "metric_points"', '"points" is no list');
    const rows = points.map((point: unknown) => {
      const [step, value] = Array.isArray(point) ? (point as unknown[]) : [];
      const bound = realFromRecord(value);
      if (typeof step !== 'string' || !/^-?[0-9]{1,19}$/.test(step) || bound === undefined) {
        throw archiveInvalid(`series "${name}"`, 'a point is no pair of a step and a number');
      }
      return { metric_step: BigInt(step), value: bound, namespace: tx.namespace };
    });
    const series = await seriesOf(tx, of);
    await tx.engine.insertRows(
      tx.db,
      METRIC_POINTS,
      rows.map((row) => ({ ...row, series })),
      ' on conflict (series, metric_step) do nothing',
    );
  }
  return records.length;
}

interface SeriesName {
  readonly run: bigint;
  readonly stage: bigint;
  readonly name: string;
}

async function seriesOf(tx: NamespaceTransaction, { run, stage, name }: SeriesName): Promise<bigint> {
  const found = await tx.db
    .selectFrom('metric_series')
    .select('key')
    .where('run', '=', run)
    .where('stage', '=', stage)
    .where('name', '=', name)
    .executeTakeFirst();
  if (found !== undefined) return found.key;
  const key = await tx.engine.nextKey(tx.db, 'metric_series');
  await tx.db.insertInto('metric_series').values({ key, namespace: tx.namespace, run, stage, name }).execute();
  return key;
}

async function storeMain(tx: NamespaceTransaction, records: readonly ArchiveRecord[]): Promise<number> {
  const keys = new RowKeys(tx);
  await keys.find([['attempt', records]]);
  for (const record of records) {
    if (record.exists !== true) continue;
    const { tree, key } = keys.trajectory(record.trajectory);
    await tx.db
      .updateTable('runs')
      .set({ main_tree: tree, main_trajectory: key })
      .where('namespace', '=', tx.namespace)
      .where('id', '=', textOf(record, 'run'))
      .where('main_trajectory', 'is', null)
      .execute();
  }
  return records.length;
}

async function storeCancellations(tx: NamespaceTransaction, records: readonly ArchiveRecord[]): Promise<number> {
  const keys = new RowKeys(tx);
  await keys.find([['cancellation', records]]);
  const rows = records.map((record) => {
    return { namespace: tx.namespace, ...keys.columns('cancellation', record, 'a cancellation of rollouts') };
  });
  const all = rows as unknown as RowOf<typeof ROLLOUT_CANCELLATIONS>[];
  await tx.engine.insertRows(tx.db, ROLLOUT_CANCELLATIONS, all, ' on conflict (run, stage) do nothing');
  return rows.length;
}

async function storeDeleted(tx: NamespaceTransaction, records: readonly ArchiveRecord[]): Promise<number> {
  const columns = DELETED_TRAJECTORIES.order.filter(({ name }) => name !== 'namespace');
  const rows = records.map((record) => {
    const values = columns.map((column) => {
      return [column.name, fromRecord({ ...column, nullable: false }, record[column.name], 'a deleted trajectory')];
    });
    return { namespace: tx.namespace, ...Object.fromEntries(values) };
  });
  const all = rows as unknown as RowOf<typeof DELETED_TRAJECTORIES>[];
  await tx.engine.insertRows(tx.db, DELETED_TRAJECTORIES, all, ' on conflict (namespace, id) do nothing');
  return rows.length;
}
