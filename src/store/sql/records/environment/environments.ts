import { type Insertable, type Selectable, sql } from 'kysely';
import type { Caller } from '../../../../domain/caller.ts';
import { AnabranchError } from '../../../../domain/errors.ts';
import { parseInstant } from '../../../../domain/instant.ts';
import { decideEnvironmentStatus, isTerminal, type Status } from '../../../../domain/lifecycle.ts';
import type { Environment } from '../../../../domain/rollout.ts';
import type { EnvironmentFilter, EnvironmentUpsert } from '../../../contract/environment.ts';
import type { Page } from '../../../contract/request.ts';
import { byId, findRunKeys, keepRun } from '../../kit/by_id.ts';
import type { Db, Engine } from '../../kit/engine.ts';
import { movedColumns, recordStatus, statusMove } from '../../kit/status/status_changes.ts';
import type { EnvironmentsTable } from '../../kit/tables.ts';
import { type CallerTransaction, type NamespaceTransaction, type ReadScope, writeAs } from '../../kit/transaction.ts';
import { bindLabels, changedColumns, differs, readLabels, readOptionalTime } from '../../kit/values.ts';
import { findRolloutKey } from '../rollout/rows.ts';

/** Of concurrent callers, one creates the environment; the others wait for its row and update it. */
export async function upsertEnvironment(
  engine: Engine,
  caller: Caller,
  upsert: EnvironmentUpsert,
): Promise<{ readonly environment: Environment; readonly created: boolean }> {
  return writeAs(engine, caller, async (tx) => {
    const run = await keepRun(tx, upsert.runId);
    const there = await byId(tx, 'environments', upsert.id).select('key').executeTakeFirst();
    const created = there === undefined ? await insertEnvironment(tx, run.key, upsert) : undefined;
    const key = created ?? (await updateEnvironment(tx, run.key, upsert));
    return { environment: await readWritten(tx, key), created: created !== undefined };
  });
}

/** Returns the key; undefined if the environment exists. */
async function insertEnvironment(
  tx: CallerTransaction,
  run: bigint,
  upsert: EnvironmentUpsert,
): Promise<bigint | undefined> {
  const { id, status = 'PENDING', message = '', phase = '', metadataJson = '' } = upsert;
  const now = await tx.readNow();
  const key = await tx.engine.keys.next(tx.db, 'environments');
  const row: Insertable<EnvironmentsTable> = {
    key,
    namespace: tx.namespace,
    id,
    run,
    type: '',
    external_id: '',
    phase,
    labels: '{}',
    config_json: '',
    ...columnsOf(upsert),
    status,
    status_message: message,
    start_time: status === 'RUNNING' ? now : null,
    end_time: isTerminal(status) ? now : null,
    create_time: now,
    update_time: now,
    status_changes: 1n,
  };
  const inserted = await tx.db
    .insertInto('environments')
    .values(row)
    .onConflict((conflict) => conflict.columns(['namespace', 'id']).doNothing())
    .returning('key')
    .executeTakeFirst();
  if (inserted === undefined) return undefined;
  const creation = { ordinal: 0n, from: null, to: status, message, phase, metadataJson };
  await recordStatus(tx, { tree: run, noun: 'ENVIRONMENT', key }, creation);
  return key;
}

/** Returns the key. An environment of a deleted run keeps its id until it is purged. Errors: ENVIRONMENT_EXISTS. */
async function updateEnvironment(tx: CallerTransaction, run: bigint, upsert: EnvironmentUpsert): Promise<bigint> {
  const query = byId(tx, 'environments', upsert.id).selectAll();
  const row = await tx.engine.locks.rows(query, 'write').executeTakeFirst();
  if (row === undefined || row.run !== run) {
    throw new AnabranchError(
      'ENVIRONMENT_EXISTS',
      `Environment ${upsert.id} belongs to another run, which may be deleted. Use its run_id, or another id.`,
      { metadata: { environment: upsert.id } },
    );
  }
  const { message, metadataJson = '', phase } = upsert;
  const to = decideEnvironmentStatus({ status: row.status as Status, message: row.status_message }, upsert);
  const given = { ...columnsOf(upsert), ...changedColumns({ status_message: message }) };
  if (to === undefined && !differs(row, given)) return row.key;
  const now = await tx.readNow();
  const details = { message: message ?? '', metadataJson, phase, resultJson: '' };
  const moved = to === undefined ? {} : movedColumns(row, to, details, now);
  await tx.db
    .updateTable('environments')
    .set({ ...given, ...moved, update_time: now })
    .where('key', '=', row.key)
    .execute();
  if (to !== undefined) {
    await recordStatus(tx, { tree: run, noun: 'ENVIRONMENT', key: row.key }, statusMove(row, to, details));
  }
  return row.key;
}

/** Returns the columns that the given fields are stored in, except for those of the status. */
function columnsOf({ type, externalId, phase, labels, configJson }: EnvironmentUpsert) {
  return changedColumns({
    type,
    external_id: externalId,
    phase,
    labels: labels && bindLabels(labels),
    config_json: configJson,
  });
}

export async function listEnvironments(
  scope: ReadScope,
  filter: EnvironmentFilter,
  page: Page<bigint>,
): Promise<Environment[]> {
  const { runId, rolloutId, attempt, ids, statuses } = filter;
  let query = selectEnvironments(scope.db, scope.namespace);
  if (runId !== undefined) query = query.where('e.run', '=', (await findRunKeys(scope, runId)).key);
  if (rolloutId !== undefined) {
    const rollout = await findRolloutKey(scope, rolloutId);
    let used = scope.db
      .selectFrom('rollout_environments as u')
      .select('u.environment')
      .where('u.rollout', '=', rollout);
    if (attempt !== undefined) used = used.where('u.attempt', '=', BigInt(attempt));
    query = query.where('e.key', 'in', used);
  }
  if (ids?.length === 0 || statuses?.length === 0) return [];
  if (ids !== undefined) query = query.where('e.id', 'in', ids);
  if (statuses !== undefined) query = query.where('e.status', 'in', statuses);
  if (page.after !== undefined) query = query.where('e.key', '<', page.after);
  const rows = await query.orderBy('e.key', 'desc').limit(page.limit).execute();
  return rows.map(readEnvironment);
}

/** Reads an environment that this transaction has written or locked. The transaction protects its run from deletion. */
async function readWritten({ db, namespace }: NamespaceTransaction, key: bigint): Promise<Environment> {
  const row = await selectEnvironments(db, namespace).where('e.key', '=', key).executeTakeFirst();
  if (row === undefined) throw new Error('an environment written in this transaction is missing');
  return readEnvironment(row);
}

/** Selects environments (`e`) of visible runs, with the ids of the runs (`r`). */
function selectEnvironments(db: Db, namespace: string) {
  return db
    .selectFrom('environments as e')
    .innerJoin('runs as r', 'r.key', 'e.run')
    .selectAll('e')
    .select('r.id as run_id')
    .where('e.namespace', '=', namespace)
    .where(sql<boolean>`not r.hidden`);
}

function readEnvironment(row: Selectable<EnvironmentsTable> & { readonly run_id: string }): Environment {
  return {
    key: row.key,
    id: row.id,
    run: { key: row.run, id: row.run_id },
    type: row.type,
    externalId: row.external_id,
    status: row.status as Status,
    statusMessage: row.status_message,
    phase: row.phase,
    labels: readLabels(row.labels),
    configJson: row.config_json,
    startTime: readOptionalTime(row.start_time),
    endTime: readOptionalTime(row.end_time),
    createTime: parseInstant(row.create_time),
    updateTime: parseInstant(row.update_time),
  };
}
