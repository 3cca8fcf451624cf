import { sql } from 'kysely';
import { type ArchiveRecord, archiveInvalid, importConflict } from '../../../../domain/archive.ts';
import { runHint } from '../../../../domain/change.ts';
import type { Engine } from '../../kit/engine.ts';
import { ATTEMPTS, VALIDATION_OVERRIDES, VALIDATIONS } from '../../kit/tables/attempts.ts';
import { STATUS_CHANGES } from '../../kit/tables/changes.ts';
import { ROLLOUT_CANCELLATIONS, ROLLOUT_ENVIRONMENTS } from '../../kit/tables/rollouts.ts';
import { METRIC_POINTS } from '../../kit/tables/runs.ts';
import type { RowOf, Table } from '../../kit/tables/table.ts';
import { DELETED_TRAJECTORIES } from '../../kit/tables/trajectories.ts';
import { type NamespaceTransaction, writeIn } from '../../kit/transaction.ts';
import { UniqueViolation } from '../../kit/unique_violation.ts';
import { type MatchedIds, missing } from './matched.ts';
import { countOf, fromRecord, listOf, NOUNS, realFromRecord, rowsIn, textOf, WITH_ID, type WithId } from './nouns.ts';
import { placeOf } from './record_checks.ts';
import { RowKeys } from './row_keys.ts';

/** What a rollout contains, and the tables of it. */
const IN_ROLLOUT = [
  ['attempts', 'attempt', ATTEMPTS],
  ['validations', 'validation', VALIDATIONS],
  ['overrides', 'override', VALIDATION_OVERRIDES],
  ['environments', 'rollout_environment', ROLLOUT_ENVIRONMENTS],
] as const;

/**
 * Stores records of one kind in one transaction, each with everything in it. Those that are stored already are left as
 * they are; `matched` gets the ids of those that are stored under other ids. Returns how many were stored. Errors:
 * ARCHIVE_INVALID, IMPORT_CONFLICT, STORAGE_FULL.
 */
export async function importRecords(
  engine: Engine,
  namespace: string,
  kind: string,
  records: readonly ArchiveRecord[],
  matched: MatchedIds,
): Promise<number> {
  for (let isRepeated = false; ; isRepeated = true) {
    try {
      return await writeIn(engine, namespace, (tx) => store(tx, kind, records, matched));
    } catch (error) {
      if (!(error instanceof UniqueViolation)) throw error;
      // Another call may have created what is matched now.
      if (!isRepeated) continue;
      const named = records.map((record) => record.id ?? record.run).join(', ');
      throw importConflict(`${kind} ${named}`, 'its name or number belongs to another one in the database');
    }
  }
}

async function store(
  tx: NamespaceTransaction,
  kind: string,
  records: readonly ArchiveRecord[],
  matched: MatchedIds,
): Promise<number> {
  if (kind === 'metric_points') return storePoints(tx, records);
  if (kind === 'main_trajectory') return storeMain(tx, records);
  if (kind === 'cancellation') return storeCancellations(tx, records);
  if (kind === 'deleted_trajectory') return storeDeleted(tx, records);
  if (kind === 'more') return storeMore(tx, records, matched);
  return storeWithId(tx, kind as WithId, records, matched);
}

async function storeWithId(
  tx: NamespaceTransaction,
  kind: WithId,
  all: readonly ArchiveRecord[],
  matched: MatchedIds,
): Promise<number> {
  const { target, history } = WITH_ID[kind];
  const keys = new RowKeys(tx, matched);
  if (kind === 'run') await lockExperiments(tx, all, keys);
  const records = await missing(tx, kind, all, keys, matched);
  if (records.length === 0) return 0;
  await keys.find([
    [kind, records],
    ...(kind === 'rollout' ? IN_ROLLOUT : []).map(([field, name]) => {
      return [name, records.flatMap((record) => listOf(record, field))] as const;
    }),
  ]);
  await tx.readNow();
  const mark = await tx.readMark();
  const own = await tx.engine.keys.nextMany(tx.db, target, records.length);
  for (const [i, record] of records.entries()) keys.set(target, textOf(record, 'id'), own[i]!);
  const { table } = NOUNS[kind];
  const rows = records.map((record, i) => {
    const set = { key: own[i]!, namespace: tx.namespace, mark, hidden: 0, main_tree: null, main_trajectory: null };
    return { ...set, ...keys.columns(kind, record, `${kind} ${textOf(record, 'id')}`) };
  });
  await requireRelations(tx, kind, records, rows);
  if (kind === 'run') await numberRuns(tx, rows);
  await insert(tx, table, rows);
  for (const [i, record] of records.entries()) {
    if (history !== undefined) await storeHistory(tx, history, rows[i]!, record);
  }
  if (kind === 'rollout') await storeParts(tx, keys, records, own);
  tx.engine.changes.announce(rows.flatMap((row) => ('run' in row ? [runHint(row.run as bigint)] : [])));
  return records.length;
}

async function insert(
  tx: NamespaceTransaction,
  table: Table,
  rows: readonly Record<string, unknown>[],
  end = '',
): Promise<void> {
  await tx.engine.bulk.insert(tx.db, table, rows as unknown as RowOf<Table>[], end);
}

async function storeHistory(
  tx: NamespaceTransaction,
  entity_kind: string,
  row: Readonly<Record<string, unknown>>,
  record: ArchiveRecord,
  end = '',
): Promise<void> {
  const tree = entity_kind === 'RUN' ? row.key : row.run;
  const of = { tree, entity_kind, entity: row.key, namespace: tx.namespace };
  await tx.engine.bulk.insert(tx.db, STATUS_CHANGES, rowsIn(record, 'history', 'status_change', of), end);
}

async function storeParts(
  tx: NamespaceTransaction,
  keys: RowKeys,
  records: readonly ArchiveRecord[],
  own: readonly bigint[],
  end = '',
): Promise<void> {
  for (const [field, name, table] of IN_ROLLOUT) {
    const rows = records.flatMap((record, i) =>
      (record[field] === undefined ? [] : listOf(record, field)).map((part) => {
        const place = `${name} of rollout ${textOf(record, 'id')}`;
        return { rollout: own[i]!, namespace: tx.namespace, ...keys.columns(name, part, place) };
      }),
    );
    await insert(tx, table, rows, end);
  }
}

/** Stores what had no room in the record of a resource, unless it is stored already. */
async function storeMore(
  tx: NamespaceTransaction,
  records: readonly ArchiveRecord[],
  matched: MatchedIds,
): Promise<number> {
  const end = ' on conflict do nothing';
  for (const record of records) {
    const { target, history } = WITH_ID[textOf(record, 'of') as 'rollout'];
    const id = textOf(record, 'id');
    const row = await tx.db
      .selectFrom(target)
      .selectAll()
      .where('namespace', '=', tx.namespace)
      .where('id', '=', id)
      .executeTakeFirst();
    if (row === undefined) throw archiveInvalid(placeOf(record), 'the record that it continues is not stored');
    requireWithin(record, { ...row, attempt: 'attempt' in row ? row.attempt : -1n });
    if (record.history !== undefined) await storeHistory(tx, history, row, record, end);
    if (record.of !== 'rollout') continue;
    const keys = new RowKeys(tx, matched);
    await keys.find(
      IN_ROLLOUT.map(([field, name]) => [name, record[field] === undefined ? [] : listOf(record, field)] as const),
    );
    await storeParts(tx, keys, [record], [row.key], end);
  }
  return records.length;
}

/** What is in a resource belongs to one of its attempts, and to one of the changes of its status. */
function requireWithin(
  record: ArchiveRecord,
  { attempt, status_changes }: { readonly attempt: bigint; readonly status_changes: bigint },
): void {
  const exceeds = (field: string, name: string, most: bigint) =>
    record[field] !== undefined && listOf(record, field).some((part) => countOf(part, name) > most);
  if (exceeds('history', 'ordinal', status_changes - 1n))
    throw archiveInvalid(placeOf(record), '"history" has more than "status_changes"');
  for (const [field] of IN_ROLLOUT) {
    if (exceeds(field, field === 'attempts' ? 'number' : 'attempt', attempt))
      throw archiveInvalid(placeOf(record), `"${field}" has an attempt that the rollout does not have`);
  }
}

type NewRows = readonly Readonly<Record<string, unknown>>[];

/** What new rows refer to belongs together. Errors: ARCHIVE_INVALID. */
async function requireRelations(
  tx: NamespaceTransaction,
  kind: WithId,
  records: readonly ArchiveRecord[],
  rows: NewRows,
): Promise<void> {
  const demand = (isRight: (row: NewRows[number]) => boolean, fault: string) => {
    const wrong = rows.findIndex((row) => !isRight(row));
    if (wrong >= 0) throw archiveInvalid(placeOf(records[wrong]!), fault);
  };
  if (kind === 'run') {
    const trees = await columnOf(tx, 'runs', 'tree', rows, 'parent');
    for (const { key, tree } of rows) trees.set(key, tree);
    // Parents have lower keys, so no run is above itself.
    demand(({ key, tree, parent }) => {
      return parent === null ? tree === key : (parent as bigint) < (key as bigint) && tree === trees.get(parent);
    }, 'its tree is not that of its parent');
  }
  if (kind === 'group' || kind === 'rollout') {
    const runs = await columnOf(tx, 'stages', 'run', rows, 'stage');
    demand(({ run, stage }) => runs.get(stage) === run, 'its stage is of another run');
  }
  if (kind !== 'rollout') return;
  const stages = await columnOf(tx, 'groups', 'stage', rows, 'group_key');
  demand(({ stage, group_key }) => stages.get(group_key) === stage, 'its group is of another stage');
  const numbers = await columnOf(tx, 'groups', 'number', rows, 'group_key');
  demand(({ group_key, group_number }) => numbers.get(group_key) === group_number, 'its group has another number');
  for (const [i, record] of records.entries()) {
    const { attempt, status_changes } = rows[i] as { readonly attempt: bigint; readonly status_changes: bigint };
    requireWithin(record, { attempt, status_changes });
  }
}

/** Returns a column of the rows that `column` of new rows refers to, by key. */
async function columnOf(
  tx: NamespaceTransaction,
  table: 'runs' | 'stages' | 'groups',
  name: string,
  rows: NewRows,
  column: string,
): Promise<Map<unknown, unknown>> {
  const keys = [...new Set(rows.flatMap((row) => (row[column] === null ? [] : [row[column] as bigint])))];
  if (keys.length === 0) return new Map();
  const found = await sql<{ readonly key: bigint; readonly value: bigint }>`
    select key, ${sql.ref(name)} as value from ${tx.engine.sql.table(table)}
    where ${tx.engine.sql.among(sql.ref('key'), keys)}`.execute(tx.db);
  return new Map(found.rows.map(({ key, value }) => [key, value]));
}

/** The holder of the locks assigns numbers and names to runs of the experiments. */
async function lockExperiments(tx: NamespaceTransaction, records: readonly ArchiveRecord[], keys: RowKeys) {
  await keys.find([['run', records]]);
  const experiments = new Set(records.map((record) => keys.key('experiments', textOf(record, 'experiment'))));
  for (const key of [...experiments].sort((a, b) => (a < b ? -1 : 1)))
    await tx.engine.locks.rows(tx.db.selectFrom('experiments').select('key').where('key', '=', key), 'write').execute();
}

/**
 * Runs keep their numbers. One whose number is taken gets the next one of its experiment. The next run gets a number
 * above all.
 */
async function numberRuns(tx: NamespaceTransaction, rows: Record<string, unknown>[]): Promise<void> {
  for (const [experiment, runs] of Map.groupBy(rows, (row) => row.experiment as bigint)) {
    const numbers = runs.map(({ number }) => number as bigint);
    const stored = tx.db.selectFrom('runs').select('number').where('experiment', '=', experiment);
    const found = await stored.where('number', 'in', numbers).execute();
    const taken = new Set(found.map(({ number }) => number));
    const { last_run_number: before } = await tx.db
      .selectFrom('experiments')
      .select('last_run_number')
      .where('key', '=', experiment)
      .executeTakeFirstOrThrow();
    let last = numbers.reduce((most, number) => (number > most ? number : most), before);
    for (const row of runs) {
      if (taken.has(row.number as bigint)) {
        last += 1n;
        row.number = last;
      }
      taken.add(row.number as bigint);
    }
    await tx.db
      .updateTable('experiments')
      .set({ last_run_number: last })
      .where('key', '=', experiment)
      .where('last_run_number', '<', last)
      .execute();
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
    const stages = await columnOf(tx, 'stages', 'run', [of], 'stage');
    if (of.stage !== 0n && stages.get(of.stage) !== of.run)
      throw archiveInvalid(placeOf(record), 'its stage is of another run');
    const points = record.points as readonly (readonly [step: string, value: unknown])[];
    const rows = points.map(([step, value]) => {
      return { metric_step: BigInt(step), value: realFromRecord(value)!, namespace: tx.namespace };
    });
    const series = await seriesOf(tx, of);
    await tx.engine.bulk.insert(
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
  const key = await tx.engine.keys.next(tx.db, 'metric_series');
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
  await insert(tx, ROLLOUT_CANCELLATIONS, rows, ' on conflict (run, stage) do nothing');
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
  await insert(tx, DELETED_TRAJECTORIES, rows, ' on conflict (namespace, id) do nothing');
  return rows.length;
}
