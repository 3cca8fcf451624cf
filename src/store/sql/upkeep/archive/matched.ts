import { type SqlBool, sql } from 'kysely';
import { type ArchiveRecord, importConflict } from '../../../../domain/archive.ts';
import { jsonDifferences, parseJson } from '../../../../domain/json.ts';
import type { Row } from '../../kit/tables/table.ts';
import type { NamespaceTransaction } from '../../kit/transaction.ts';
import { NOUNS, plainColumns, textOf, toRecord, WITH_ID, type WithId } from './nouns.ts';
import type { RowKeys } from './row_keys.ts';

/** Ids of an archive whose resources are stored under other ids: the stored ids. */
export type MatchedIds = Map<string, string>;

/**
 * Returns the records that must be stored. Those that are stored under their ids are left out. So are experiments whose
 * name is stored, and equal validators of one task and type: each server makes their ids itself. Errors:
 * IMPORT_CONFLICT (another resource has the id, or the name).
 */
export async function missing(
  tx: NamespaceTransaction,
  kind: WithId,
  all: readonly ArchiveRecord[],
  keys: RowKeys,
  matched: MatchedIds,
): Promise<ArchiveRecord[]> {
  const stored = new Map(
    (await rowsOf(tx, kind, sql`${sql.ref('id')} in (${sql.join(all.map((record) => textOf(record, 'id')))})`)).map(
      (row) => [row.id as string, row],
    ),
  );
  const unique = [...new Map(all.map((record) => [textOf(record, 'id'), record])).values()];
  const unknown = unique.filter((record) => {
    const row = stored.get(textOf(record, 'id'));
    if (row !== undefined) requireSame(kind, record, row);
    return row === undefined;
  });
  if (kind === 'experiment') return withoutStored(tx, unknown, matched);
  if (kind === 'validator') return withoutEqual(tx, unknown, keys, matched);
  if (kind === 'run') await requireFreeNames(tx, unknown, keys);
  return unknown;
}

async function rowsOf(tx: NamespaceTransaction, kind: WithId, where: ReturnType<typeof sql>): Promise<readonly Row[]> {
  const { rows } = await sql<Row>`select * from ${tx.engine.sql.table(WITH_ID[kind].target)}
    where ${sql.ref('namespace')} = ${tx.namespace} and ${where}`.execute(tx.db);
  return rows;
}

/** Tasks have the ids of their clients, so equal ones of two servers are one. All others were created once. */
function requireSame(kind: WithId, record: ArchiveRecord, row: Row): void {
  if (record.create_time === toRecord(columnOf(kind, 'create_time'), row.create_time)) return;
  const differences = differencesOf(kind, record, row);
  if (kind === 'task' && differences.length === 0) return;
  throw conflict(`The ${kind} ${textOf(record, 'id')}`, 'another one with this id is stored', [
    `create_time (${String(toRecord(columnOf(kind, 'create_time'), row.create_time))}, ${String(record.create_time)})`,
    ...differences,
  ]);
}

async function withoutStored(tx: NamespaceTransaction, records: readonly ArchiveRecord[], matched: MatchedIds) {
  if (records.length === 0) return [];
  const names = records.map((record) => textOf(record, 'name'));
  const rows = await rowsOf(tx, 'experiment', sql<SqlBool>`name in (${sql.join(names)}) and not hidden`);
  const byName = new Map(rows.map((row) => [row.name as string, row.id as string]));
  return records.filter((record) => {
    const id = byName.get(textOf(record, 'name'));
    if (id !== undefined) matched.set(textOf(record, 'id'), id);
    return id === undefined;
  });
}

async function withoutEqual(
  tx: NamespaceTransaction,
  records: readonly ArchiveRecord[],
  keys: RowKeys,
  matched: MatchedIds,
): Promise<ArchiveRecord[]> {
  const rows = await rowsWith(tx, 'validator', records, keys);
  return records.filter((record, i) => {
    const row = rows[i];
    if (row === undefined) return true;
    const differences = differencesOf('validator', record, row);
    const named = `The validator "${textOf(record, 'type')}" of task "${textOf(record, 'task')}"`;
    if (differences.length > 0) throw conflict(named, 'another one of this type is stored', differences);
    matched.set(textOf(record, 'id'), row.id as string);
    return false;
  });
}

/** Names of runs are unique within their experiment. */
async function requireFreeNames(tx: NamespaceTransaction, records: readonly ArchiveRecord[], keys: RowKeys) {
  const rows = await rowsWith(tx, 'run', records, keys);
  for (const [i, record] of records.entries()) {
    const row = rows[i];
    if (row === undefined) continue;
    const ids = `id (${row.id as string}, ${textOf(record, 'id')})`;
    const experiment = tx.db
      .selectFrom('experiments')
      .select('name')
      .where('key', '=', row.experiment as bigint);
    const { name } = await experiment.executeTakeFirstOrThrow();
    throw conflict(
      `The run "${textOf(record, 'name')}" of experiment "${name}"`,
      'another run of this name is stored',
      [ids, ...differencesOf('run', record, row)],
      'Rename one of them with UpdateRun, or import into another database',
    );
  }
}

/** What is unique within what. */
const NAMED = { run: ['experiment', 'name'], validator: ['task', 'type'] } as const;

/** Returns for each record the visible row that has the same name within the same owner. */
async function rowsWith(
  tx: NamespaceTransaction,
  kind: 'run' | 'validator',
  records: readonly ArchiveRecord[],
  keys: RowKeys,
): Promise<readonly (Row | undefined)[]> {
  if (records.length === 0) return [];
  const [owner, name] = NAMED[kind];
  await keys.find([[kind, records]]);
  const wanted = records.map((record) => {
    return { owner: keys.key(`${owner}s`, textOf(record, owner)), name: textOf(record, name) };
  });
  const rows = await rowsOf(
    tx,
    kind,
    sql`${sql.ref(owner)} in (${sql.join(wanted.map((each) => each.owner))})
      and ${sql.ref(name)} in (${sql.join(wanted.map((each) => each.name))}) ${kind === 'run' ? sql`and not hidden` : sql``}`,
  );
  const found = new Map(rows.map((row) => [`${String(row[owner])} ${String(row[name])}`, row]));
  return wanted.map((each) => found.get(`${each.owner} ${each.name}`));
}

/** Columns of the service's own bookkeeping, and those that others repeat. */
const NOT_COMPARED = new Set([
  ...['id', 'number', 'update_time', 'status_changes', 'revision', 'last_run_number', 'heartbeat_time', 'stale_time'],
  ...['config_overrides_json', 'removed_config_paths'],
]);

/** Returns what differs between a stored row and a record, as `NAME (STORED, IMPORTED)`. */
function differencesOf(kind: WithId, record: ArchiveRecord, row: Row): string[] {
  const isDefinition = kind === 'task' || kind === 'validator';
  return plainColumns(NOUNS[kind]).flatMap((column) => {
    const { name } = column;
    if (NOT_COMPARED.has(name) || (isDefinition && name === 'create_time')) return [];
    const [stored, sent] = [toRecord(column, row[name]), record[name] ?? null];
    if (stored === sent) return [];
    if (name !== 'config_json') return [difference(name, stored, sent)];
    const [one, other] = [stored, sent].map((text) => (text === '' ? undefined : parseJson(text as string)));
    return [...jsonDifferences(one, other)].map(({ path, valueJson, otherValueJson }) =>
      difference(name + path, valueJson, otherValueJson),
    );
  });
}

function difference(name: string, stored: unknown, sent: unknown): string {
  const [one, other] = [stored, sent].map((value) => shortened(value === '' ? 'none' : String(value)));
  return `${name} (${one}, ${other})`;
}

/** Characters of a value, and differences, that a message has. */
const [MOST_CHARACTERS, MOST_DIFFERENCES] = [60, 12];

function shortened(text: string): string {
  const letters = [...text];
  return letters.length > MOST_CHARACTERS ? `${letters.slice(0, MOST_CHARACTERS - 1).join('')}…` : text;
}

function conflict(what: string, found: string, differences: readonly string[], remedy?: string) {
  const more = differences.length - MOST_DIFFERENCES;
  const listed = differences.slice(0, MOST_DIFFERENCES).join(', ') + (more > 0 ? ` and ${more} more` : '');
  return importConflict(what, `${found}. Stored and imported differ in ${listed}`, remedy);
}

function columnOf(kind: WithId, name: string) {
  return plainColumns(NOUNS[kind]).find((column) => column.name === name)!;
}
