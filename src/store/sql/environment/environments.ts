import { type Selectable, sql } from 'kysely';
import type { Caller } from '../../../domain/caller.ts';
import { AnabranchError, environmentNotFound } from '../../../domain/errors.ts';
import { parseInstant } from '../../../domain/instant.ts';
import type { Status, Verb } from '../../../domain/lifecycle.ts';
import type { Environment } from '../../../domain/rollout.ts';
import type { NewEnvironment } from '../../contract/environment.ts';
import type { IdempotencyKey } from '../../contract/idempotency.ts';
import type { Page } from '../../contract/page.ts';
import { byId } from '../by_id.ts';
import type { Db, Engine } from '../engine.ts';
import { makeOnce, type Noun } from '../requests.ts';
import { findRolloutKey } from '../rollout/keys.ts';
import { findRunKeys, keepRun, keepRunOf } from '../run/keys.ts';
import { movedColumns, statusMove } from '../status/moved_status.ts';
import { recordStatus } from '../status/status_changes.ts';
import { applyVerb, type Movable, type Move } from '../status/verbs.ts';
import type { EnvironmentsTable } from '../tables.ts';
import type { CallerTransaction, NamespaceTransaction, ReadScope } from '../transaction.ts';
import { bindLabels, readLabels, readOptionalTime } from '../values.ts';

export async function createEnvironment(
  engine: Engine,
  caller: Caller,
  newEnvironment: NewEnvironment,
  key: IdempotencyKey | undefined,
): Promise<Environment> {
  const noun: Noun<Environment> = { name: 'Environment', find: findEnvironment };
  return makeOnce(engine, caller, key, noun, async (tx) => {
    const run = await keepRun(tx, newEnvironment.runId);
    await refuseTaken(tx, newEnvironment.id);
    const row = await insertEnvironment(tx, run.key, newEnvironment);
    return { ref: { tree: row, key: row }, id: newEnvironment.id, made: await readWritten(tx, row) };
  });
}

/** An environment of a deleted run keeps its id until it is purged. */
async function refuseTaken(tx: NamespaceTransaction, id: string): Promise<void> {
  const taken = await byId(tx, 'environments', id).select('key').executeTakeFirst();
  if (taken === undefined) return;
  throw new AnabranchError(
    'ENVIRONMENT_EXISTS',
    `Environment ${id} exists, possibly in a deleted run. Use another id, or read it with GetEnvironment.`,
    { metadata: { environment: id } },
  );
}

async function insertEnvironment(tx: CallerTransaction, run: bigint, newEnvironment: NewEnvironment): Promise<bigint> {
  const { id, type, externalId, status, labels, configJson, phase } = newEnvironment;
  const now = await tx.readNow();
  const key = await tx.engine.nextKey(tx.db, 'environments');
  await tx.db
    .insertInto('environments')
    .values({
      key,
      namespace: tx.namespace,
      id,
      run,
      type,
      external_id: externalId,
      status,
      status_message: '',
      phase,
      labels: bindLabels(labels),
      config_json: configJson,
      start_time: status === 'RUNNING' ? now : null,
      end_time: null,
      create_time: now,
      update_time: now,
      status_changes: 1n,
    })
    .execute();
  const creation = { ordinal: 0n, from: null, to: status, message: '', phase };
  await recordStatus(tx, { tree: run, noun: 'ENVIRONMENT', key }, creation);
  return key;
}

/** A verb of an environment, which is never reopened. */
interface EnvironmentMove extends Move<'environment'> {
  readonly verb: Exclude<Verb, 'reopen'>;
  /** Undefined: not changed. */
  readonly externalId: string | undefined;
}

export function moveEnvironment(
  engine: Engine,
  caller: Caller,
  id: string,
  move: EnvironmentMove,
): Promise<Environment> {
  return applyVerb(engine, caller, id, ENVIRONMENTS, move);
}

const ENVIRONMENTS: Movable<'environment', LockedEnvironment, EnvironmentMove, Environment> = {
  noun: 'environment',
  lock: lockEnvironment,
  entityOf: ({ run, key }) => ({ tree: run, noun: 'ENVIRONMENT', key }),
  async apply(tx, row, to, { details, externalId }) {
    if (to === undefined) return [];
    const now = await tx.readNow();
    await tx.db
      .updateTable('environments')
      .set({
        ...movedColumns(row, to, details, now),
        ...(externalId === undefined ? {} : { external_id: externalId }),
        update_time: now,
      })
      .where('key', '=', row.key)
      .execute();
    await recordStatus(tx, ENVIRONMENTS.entityOf(row), statusMove(row, to, details));
    return [];
  },
  read: findEnvironment,
};

type LockedEnvironment = Selectable<EnvironmentsTable>;

/** Locks the environment, and its run against deletion. Errors: ENVIRONMENT_NOT_FOUND. */
async function lockEnvironment(tx: NamespaceTransaction, id: string): Promise<LockedEnvironment> {
  const seen = await findEnvironment(tx, { id });
  if (seen === undefined || !(await keepRunOf(tx, seen))) throw environmentNotFound(id);
  const query = tx.db.selectFrom('environments').selectAll().where('key', '=', seen.key);
  const row = await tx.engine.lock(query, 'write').executeTakeFirst();
  if (row === undefined) throw environmentNotFound(id);
  return row;
}

export async function listEnvironments(
  scope: ReadScope,
  of: { readonly runId: string } | { readonly rolloutId: string },
  statuses: readonly Status[] | undefined,
  page: Page<bigint>,
): Promise<Environment[]> {
  let query = selectEnvironments(scope.db, scope.namespace);
  if ('runId' in of) {
    query = query.where('e.run', '=', (await findRunKeys(scope, of.runId)).key);
  } else {
    const rollout = await findRolloutKey(scope, of.rolloutId);
    const used = scope.db.selectFrom('rollout_environments as u').select('u.environment');
    query = query.where('e.key', 'in', used.where('u.rollout', '=', rollout));
  }
  if (statuses?.length === 0) return [];
  if (statuses !== undefined) query = query.where('e.status', 'in', statuses);
  if (page.after !== undefined) query = query.where('e.key', '<', page.after);
  const rows = await query.orderBy('e.key', 'desc').limit(page.limit).execute();
  return rows.map(readEnvironment);
}

/** Returns undefined if the environment does not exist. */
export async function findEnvironment(
  { db, namespace }: ReadScope,
  reference: { readonly id: string } | { readonly key: bigint },
): Promise<Environment | undefined> {
  const query = selectEnvironments(db, namespace);
  const at = 'id' in reference ? query.where('e.id', '=', reference.id) : query.where('e.key', '=', reference.key);
  const row = await at.executeTakeFirst();
  return row === undefined ? undefined : readEnvironment(row);
}

/** Reads an environment that this transaction has written. The transaction protects its run from deletion. */
async function readWritten(tx: NamespaceTransaction, key: bigint): Promise<Environment> {
  const environment = await findEnvironment(tx, { key });
  if (environment === undefined) throw new Error('an environment written in this transaction is missing');
  return environment;
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
