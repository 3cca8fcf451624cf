import { type RawBuilder, sql } from 'kysely';
import { rolloutNotFound, stageNotFound } from '../../../../domain/errors.ts';
import { parseInstant } from '../../../../domain/instant.ts';
import { NANOS_PER_MS } from '../../../../domain/lease.ts';
import { TERMINAL_STATUSES } from '../../../../domain/lifecycle.ts';
import type { ClaimRequest } from '../../../contract/rollout.ts';
import { byId, findRunKeys, keysById } from '../../kit/by_id.ts';
import type { Db } from '../../kit/engine.ts';
import type { Expressions } from '../../kit/expressions.ts';
import { padded } from '../../kit/kept_queries.ts';
import { inOneRoundTrip, type NamespaceTransaction, type Transaction } from '../../kit/transaction.ts';
import { isSet } from '../../kit/values.ts';
import { IS_LIVE } from '../rollout/rows.ts';
import { findStage } from '../stage/rows.ts';
import { IS_PENDING, isWanted, type Queue } from './queue.ts';

/** Requests with equal filters. They share statements and are served in order of arrival. */
export interface ClaimBatch {
  /** A request that stands for all of them. */
  readonly wanted: ClaimRequest;
  /** Indexes in the list of all requests. */
  readonly indexes: readonly number[];
}

export function batchesOf(requests: readonly ClaimRequest[]): ClaimBatch[] {
  const batches = new Map<string, { wanted: ClaimRequest; indexes: number[] }>();
  for (const [index, request] of requests.entries()) {
    const name = nameOf(request);
    const batch = batches.get(name);
    if (batch === undefined) batches.set(name, { wanted: request, indexes: [index] });
    else batch.indexes.push(index);
  }
  return [...batches.values()];
}

function nameOf({ caller, runId, stageId, taskIds, rolloutIds, labels, minPriority }: ClaimRequest): string {
  const pairs = [...labels].sort(([a], [b]) => (a < b ? -1 : 1));
  const ids = [[...taskIds].sort(), [...rolloutIds].sort()];
  return JSON.stringify([caller.namespace, runId, stageId, ids, pairs, minPriority]);
}

/** Stages, tasks and rollouts that a filter selects. */
export interface ClaimScope {
  /** Queues that can be claimed from: the stage is not terminal, and its run is neither paused nor terminal (Q4). */
  readonly queues: readonly Queue[];
  /** Keys of all open stages, including those of paused runs, which can be claimed from later. */
  readonly stages: readonly bigint[];
  readonly runs: readonly bigint[];
  /** Keys of the requested tasks; undefined for any task. */
  readonly tasks: readonly bigint[] | undefined;
  /** Keys of the requested rollouts; undefined for any rollout. */
  readonly rollouts: readonly bigint[] | undefined;
  /** Whether no rollout can be created there (Q2). False if the request names neither rollouts nor stage nor run. */
  readonly isClosed: boolean;
}

/** Reads without a lock. Errors: RUN_NOT_FOUND, STAGE_NOT_FOUND, ROLLOUT_NOT_FOUND. */
export async function readScope(
  tx: Transaction,
  { caller, runId, stageId, taskIds, rolloutIds }: ClaimRequest,
): Promise<ClaimScope> {
  const own = tx.in(caller.namespace);
  const named = rolloutIds.length === 0 ? undefined : await readNamed(own, rolloutIds);
  const [stages, found] = await inOneRoundTrip([
    readStages(own, runId, stageId, named),
    keysById(own, 'tasks', taskIds),
  ]);
  // Unknown task ids match nothing.
  const tasks = taskIds.length === 0 ? undefined : [...found.values()];
  const queuesAreClosed =
    stages.length === 0
      ? await isOver(own, runId, stageId)
      : (runId !== undefined || stageId !== undefined) && stages.every(({ closed }) => isSet(closed));
  const open = stages.filter(({ paused }) => !isSet(paused));
  const queues = open.flatMap(({ key }): Queue[] =>
    tasks === undefined ? [{ stage: key, task: null }] : tasks.map((task) => ({ stage: key, task })),
  );
  const runs = [...new Set(stages.map(({ run }) => run))];
  const rollouts = named?.map(({ key }) => key);
  return {
    queues,
    stages: stages.map(({ key }) => key),
    runs,
    tasks,
    rollouts,
    isClosed: named !== undefined || queuesAreClosed,
  };
}

/** Condition for rollouts (`r`) of these stages, and of the requested tasks and ids. */
export function isInScope(
  expressions: Expressions,
  { tasks, rollouts }: ClaimScope,
  stages: readonly bigint[],
): RawBuilder<unknown> {
  const conditions = [expressions.among(sql.ref('r.stage'), stages)];
  if (tasks !== undefined) conditions.push(expressions.among(sql.ref('r.task'), tasks));
  if (rollouts !== undefined) conditions.push(expressions.among(sql.ref('r.key'), rollouts));
  return sql.join(conditions, sql` and `);
}

interface NamedRollout {
  readonly key: bigint;
  readonly stage: bigint;
}

/**
 * One subquery per id: for a list of ids, Postgres without statistics reads the ids of the whole namespace. Errors:
 * ROLLOUT_NOT_FOUND.
 */
async function readNamed(tx: NamespaceTransaction, ids: readonly string[]): Promise<NamedRollout[]> {
  const keys = padded(ids).map((id) => byId(tx, 'rollouts', id).select('key'));
  const rows = await tx.db
    .selectFrom('rollouts as r')
    .innerJoin('runs as u', 'u.key', 'r.run')
    .select(['r.id', 'r.key', 'r.stage'])
    .where('r.key', 'in', keys)
    .where('u.hidden', '=', 0)
    .execute();
  const found = new Set(rows.map(({ id }) => id));
  const unknown = ids.find((id) => !found.has(id));
  if (unknown !== undefined) throw rolloutNotFound(unknown);
  return rows;
}

/** Selects open stages of open runs. The conditions match the partial index of open stages literally. */
async function readStages(
  tx: NamespaceTransaction,
  runId: string | undefined,
  stageId: string | undefined,
  named: readonly NamedRollout[] | undefined,
) {
  const { engine } = tx;
  if (named !== undefined) {
    const stages = [...new Set(named.map(({ stage }) => stage))];
    return selectOpen(tx.db, tx.namespace, runId, stageId)
      .where(engine.sql.among(sql.ref('s.key'), stages))
      .execute();
  }
  const name = `open stages${runId === undefined ? '' : ' of run'}${stageId === undefined ? '' : ' by id'}`;
  const query = engine.kept.of(name, [tx.namespace, runId ?? '', stageId ?? ''], (of, run, stage) =>
    selectOpen(engine.db, of, runId && run, stageId && stage),
  );
  return engine.transactions.ask(tx.db, query);
}

function selectOpen(db: Db, namespace: string, runId: string | undefined, stageId: string | undefined) {
  let query = db
    .selectFrom('stages as s')
    .innerJoin('runs as u', (join) => join.onRef('u.key', '=', 's.run').on('u.hidden', '=', 0))
    .select(['s.key', 's.run'])
    .select(sql<boolean | bigint>`(u.status = 'PAUSED')`.as('paused'))
    .select(sql<boolean | bigint>`(s.queue_close_time is not null)`.as('closed'))
    .where('s.namespace', '=', namespace)
    .where(sql<boolean>`s.status in ('PENDING', 'INITIALIZING', 'RUNNING', 'PAUSED')`)
    .where(sql<boolean>`u.status in ('PENDING', 'INITIALIZING', 'RUNNING', 'PAUSED')`);
  if (runId !== undefined) query = query.where('u.namespace', '=', namespace).where('u.id', '=', runId);
  if (stageId !== undefined) query = query.where('s.id', '=', stageId);
  return query;
}

/**
 * Decides whether a request that found no open stage can never find one. For a stage: always. For a run: if the run is
 * terminal, or has stages and all are terminal. Errors: RUN_NOT_FOUND, STAGE_NOT_FOUND.
 */
async function isOver(
  tx: NamespaceTransaction,
  runId: string | undefined,
  stageId: string | undefined,
): Promise<boolean> {
  const run = runId === undefined ? undefined : await findRunKeys(tx, runId);
  if (stageId !== undefined) {
    const stage = await findStage(tx, { id: stageId });
    if (stage === undefined || (run !== undefined && run.key !== stage.run.key)) throw stageNotFound(stageId, runId);
    return true;
  }
  if (run === undefined) return false;
  const ofRun = sql`from ${tx.engine.sql.table('stages')} as s where s.run = ${run.key}`;
  const { rows } = await sql<{ readonly over: boolean | bigint }>`select (u.status in (${sql.join(TERMINAL_STATUSES)})
    or exists (select 1 ${ofRun}) and not exists (select 1 ${ofRun} and s.status not in (${sql.join(TERMINAL_STATUSES)}))) as over
    from ${tx.engine.sql.table('runs')} as u where u.key = ${run.key}`.execute(tx.db);
  return isSet(rows[0]?.over ?? false);
}

/**
 * Q2: returns whether no matching rollout is PENDING or live, and none can be created. The statement reads the stages
 * again, because one may have been created or reopened since `scope` was read. All conditions hold at one moment.
 */
export async function isDrained(tx: Transaction, scope: ClaimScope, request: ClaimRequest): Promise<boolean> {
  const { engine } = tx;
  if (!scope.isClosed) return false;
  if (scope.stages.length === 0 || scope.tasks?.length === 0) return true;
  const { caller, runId, stageId } = request;
  const elsewhere = selectOpen(engine.db, caller.namespace, runId, stageId).where(
    sql<boolean>`(s.queue_close_time is null or not ${engine.sql.among(sql.ref('s.key'), scope.stages)})`,
  );
  const orElsewhere = scope.rollouts === undefined ? sql`or exists ${elsewhere}` : sql``;
  const from = sql`select 1 from ${engine.sql.table('rollouts')} as r where ${isInScope(engine.sql, scope, scope.stages)}`;
  const wanted = { labels: request.labels, minPriority: request.minPriority, except: [] };
  const live = sql`${engine.sql.among(sql.ref('r.run'), scope.runs)} and ${IS_LIVE}`;
  const { rows } = await sql<{ readonly more: boolean | bigint }>`select (
    exists (${from} and ${isWanted(engine.sql, wanted, IS_PENDING)})
    or exists (${from} and ${isWanted(engine.sql, wanted, live)}) ${orElsewhere}) as more`.execute(tx.db);
  return !isSet(rows[0]?.more ?? false);
}

/**
 * Returns the milliseconds until the first matching delayed rollout can be claimed, by the clock of the database.
 * Returns undefined if no rollout of a claimable stage is delayed.
 */
export async function nextInMs(
  tx: Transaction,
  scope: ClaimScope,
  { labels, minPriority }: ClaimRequest,
): Promise<number | undefined> {
  const { engine } = tx;
  const { queues } = scope;
  if (queues.length === 0) return undefined;
  const stages = [...new Set(queues.map(({ stage }) => stage))];
  const delayed = sql`${IS_PENDING} and r.claimable_time > (select ${engine.sql.now})`;
  const { rows } = await sql<{ readonly next: string | null; readonly now: string }>`
    select min(r.claimable_time) as next, (select ${engine.sql.now}) as now from ${engine.sql.table('rollouts')} as r
    where ${isInScope(engine.sql, scope, stages)} and ${isWanted(engine.sql, { labels, minPriority, except: [] }, delayed)}`.execute(
    tx.db,
  );
  const [found] = rows;
  if (found === undefined || found.next === null) return undefined;
  const nanos = parseInstant(found.next) - parseInstant(found.now);
  // Rounded up: a claim that comes too early finds nothing.
  return Math.max(0, Number((nanos + NANOS_PER_MS - 1n) / NANOS_PER_MS));
}
