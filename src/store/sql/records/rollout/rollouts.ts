import {
  type CompiledQuery,
  type Expression,
  type RawBuilder,
  type Selectable,
  type SelectQueryBuilder,
  sql,
} from 'kysely';
import type { Caller } from '../../../../domain/caller.ts';
import { runHint } from '../../../../domain/change.ts';
import { environmentNotFound, groupNotFound, invalidField, stageNotFound } from '../../../../domain/errors.ts';
import type { Attempt, Rollout } from '../../../../domain/rollout.ts';
import { requireBegun, requireClaimer, requireLease } from '../../../../domain/rollout_moves.ts';
import type { Page, View } from '../../../contract/request.ts';
import type {
  RolloutChanges,
  RolloutCursor,
  RolloutFilter,
  RolloutPosition,
  RolloutRecord,
} from '../../../contract/rollout.ts';
import { byId, findRunKeys } from '../../kit/by_id.ts';
import type { Db, Engine } from '../../kit/engine.ts';
import { firstGivenAfter, mergeMetrics } from '../../kit/given_fields.ts';
import { labelsAndTimes } from '../../kit/list_order.ts';
import type { RolloutsTable, Tables } from '../../kit/tables.ts';
import { type ReadScope, type Transaction, writeAs } from '../../kit/transaction.ts';
import { bindLabels, bindMetrics, changedColumns } from '../../kit/values.ts';
import { type AttemptValues, changeAttempt, readAttempt, readAttemptRow, selectAttempts } from '../attempt/attempts.ts';
import {
  overrideByAttempt,
  selectStandingOverrides,
  selectValidations,
  validationsByAttempt,
} from '../attempt/validations.ts';
import { bindTimings, findStage, mergeTimings } from '../stage/rows.ts';
import { writeWatched } from '../watched_row.ts';
import {
  holdingOf,
  type LockedRollout,
  lockRollout,
  type RolloutRow,
  readRollout,
  readWritten,
  SHOWN_REWARD,
  selectPage,
  selectRollout,
} from './rows.ts';

export async function getRollout(scope: ReadScope, id: string): Promise<RolloutRecord | undefined> {
  const { engine, db, namespace } = scope;
  const key = byId(scope, 'rollouts', id).select('key').$asScalar();
  const [rollouts, attempts, validations, overrides, environments] = await engine.reads.snapshot([
    selectRollout(engine, db, namespace, { id }, 'FULL').compile(),
    selectAttempts(db, key).compile(),
    selectValidations(db, key).compile(),
    selectStandingOverrides(db, key).compile(),
    selectEnvironmentIds(db, key).compile(),
  ]);
  const [rollout] = rollouts;
  if (rollout === undefined) return undefined;
  const validationsOf = validationsByAttempt(validations);
  const overrideOf = overrideByAttempt(overrides);
  const environmentsOf = Map.groupBy(environments, ({ attempt }) => attempt);
  return {
    rollout: readRollout(rollout),
    attempts: attempts.map(
      (row): Attempt => ({
        ...readAttempt(row),
        validations: validationsOf.get(row.number) ?? [],
        override: overrideOf.get(row.number),
        environmentIds: (environmentsOf.get(row.number) ?? []).map((environment) => environment.id),
      }),
    ),
  };
}

function selectEnvironmentIds(db: Db, rollout: Expression<bigint>) {
  return db
    .selectFrom('rollout_environments as l')
    .innerJoin('environments as e', 'e.key', 'l.environment')
    .select(['l.attempt', 'e.id'])
    .where('l.rollout', '=', rollout)
    .orderBy('e.key');
}

export async function listRollouts(
  scope: ReadScope,
  filter: RolloutFilter,
  page: Page<RolloutCursor>,
  view: View,
): Promise<Rollout[]> {
  const place = filter.of === undefined ? undefined : await resolveFilter(scope, filter.of);
  if (filter.statuses?.length === 0) return [];
  const query =
    place === undefined
      ? pageAcrossRuns(scope, filter, page, view)
      : Object.keys(filter).length === 1 && page.after === undefined
        ? firstPage(scope, filter, place, page.limit, view)
        : pageOf(scope, filter, place, page, view);
  const { rows } = await scope.engine.byIndex().db.executeQuery(query);
  return rows.map(readRollout);
}

/** The first page without filters, which user interfaces poll, so its query is cached. */
function firstPage(
  scope: ReadScope,
  filter: RolloutFilter,
  { run, stage, group }: FilterKeys,
  limit: number,
  view: View,
): CompiledQuery<RolloutRow> {
  const name = `rollouts ${view} of ${Object.keys(filter.of ?? {}).join()}`;
  return scope.engine.kept.page(name, limit, [run, stage ?? 0n, group ?? 0n], (most, inRun, inStage, inGroup) => {
    const place = {
      run: inRun,
      stage: stage === undefined ? undefined : inStage,
      group: group === undefined ? undefined : inGroup,
    };
    return pageOf(scope, filter, place, { limit: most, after: undefined }, view);
  });
}

function pageOf(
  scope: ReadScope,
  filter: RolloutFilter,
  place: FilterKeys,
  { limit, after }: { readonly limit: number | Expression<number>; readonly after: RolloutCursor | undefined },
  view: View,
) {
  const { engine } = scope;
  const { db } = engine;
  let page = matching(engine, inPlace(db.selectFrom('rollouts as r').selectAll('r'), place), filter);
  // A condition that no index serves: rollouts are read in the order of their place.
  if (filter.taskId !== undefined) {
    page = page.where(sql<boolean>`(r.task in ${keyOfTask(scope, filter.taskId)}) is true`);
  }
  if (filter.workerId !== undefined) {
    page = page.where(sql<boolean>`(select a.worker_id from ${engine.sql.table('attempts')} as a
      where a.rollout = r.key and a.number = r.attempt) = ${filter.workerId}`);
  }
  if (after !== undefined && 'stage' in after) page = page.where(isBehind(place, after));
  if (place.stage === undefined) page = page.orderBy('r.stage');
  if (place.group === undefined) page = page.orderBy('r.group_number');
  return selectPage(engine, db, view, page.orderBy('r.number').limit(limit))
    .orderBy('r.stage')
    .orderBy('r.group_number')
    .orderBy('r.number');
}

/** Newest first, by the index of attempts by worker or of rollouts by task. */
function pageAcrossRuns(scope: ReadScope, filter: RolloutFilter, { limit, after }: Page<RolloutCursor>, view: View) {
  const { engine } = scope;
  const { db } = engine;
  const { taskId, workerId } = filter;
  const rollouts =
    workerId === undefined
      ? db.selectFrom('rollouts as r').selectAll('r').orderBy('r.key', 'desc')
      : ofWorker(db, scope.namespace, workerId, after);
  // The page is limited before runs are joined, so rollouts of deleted runs must be excluded here.
  let page = matching(engine, rollouts, filter).where(
    sql<boolean>`not (select u.hidden from ${engine.sql.table('runs')} as u where u.key = r.run)`,
  );
  if (taskId !== undefined) page = page.where('r.task', '=', keyOfTask(scope, taskId));
  if (after !== undefined && 'key' in after) page = page.where('r.key', '<', after.key);
  return selectPage(engine, db, view, page.limit(limit)).orderBy('r.key', 'desc');
}

/** Selects rollouts whose latest attempt a worker claimed. SQLite keeps the order of cross joins. */
function ofWorker(db: Db, namespace: string, workerId: string, after: RolloutCursor | undefined) {
  const rollouts = db
    .selectFrom('attempts as a')
    .crossJoin('rollouts as r')
    .whereRef('r.key', '=', 'a.rollout')
    .whereRef('r.attempt', '=', 'a.number')
    .where('a.namespace', '=', namespace)
    .where('a.worker_id', '=', workerId)
    .selectAll('r')
    .orderBy('a.rollout', 'desc');
  const left = after !== undefined && 'key' in after ? rollouts.where('a.rollout', '<', after.key) : rollouts;
  return left as unknown as Rollouts;
}

type Rollouts = SelectQueryBuilder<Tables & { r: RolloutsTable }, 'r', Selectable<RolloutsTable>>;

/** Applies the filters that do not depend on run, stage or group. */
function matching(engine: Engine, rollouts: Rollouts, filter: RolloutFilter): Rollouts {
  let page = rollouts;
  if (filter.statuses !== undefined) page = page.where('r.status', 'in', filter.statuses);
  if (filter.success !== undefined) {
    // M3: the rollouts that success rates count.
    page = page.where('r.success', '=', filter.success ? 1 : 0).where('r.status', 'in', ['COMPLETED', 'FAILED']);
  }
  const conditions = [...labelsAndTimes(engine, 'r', filter), ...rewardConditions(engine, filter)];
  for (const condition of conditions) page = page.where(condition);
  return page;
}

/** A group is selected by its key alone, so that planners do not consider indexes of the stage or the run. */
function inPlace<Row>(
  query: SelectQueryBuilder<Tables & { r: RolloutsTable }, 'r', Row>,
  { run, stage, group }: FilterKeys,
) {
  if (group !== undefined) return query.where('r.group_key', '=', group);
  const inRun = query.where('r.run', '=', run);
  return stage === undefined ? inRun : inRun.where('r.stage', '=', stage);
}

function keyOfTask(scope: ReadScope, id: string) {
  return byId(scope, 'tasks', id).select('key');
}

interface FilterKeys {
  readonly run: bigint;
  readonly stage: bigint | undefined;
  readonly group: bigint | undefined;
}

/** Resolves the ids of a filter to row keys. Errors: RUN_NOT_FOUND, STAGE_NOT_FOUND, GROUP_NOT_FOUND. */
async function resolveFilter(scope: ReadScope, of: NonNullable<RolloutFilter['of']>): Promise<FilterKeys> {
  const { namespace } = scope;
  const { db } = scope.engine;
  if ('runId' in of) {
    const { key } = await findRunKeys(scope, of.runId);
    return { run: key, stage: undefined, group: undefined };
  }
  if ('stageId' in of) {
    const stage = await findStage(scope, { id: of.stageId });
    if (stage === undefined) throw stageNotFound(of.stageId);
    return { run: stage.run.key, stage: stage.key, group: undefined };
  }
  const group = await db
    .selectFrom('groups as g')
    .innerJoin('runs as u', (join) => join.onRef('u.key', '=', 'g.run').on('u.hidden', '=', 0))
    .select(['g.key', 'g.run', 'g.stage'])
    .where('g.namespace', '=', namespace)
    .where('g.id', '=', of.groupId)
    .executeTakeFirst();
  if (group === undefined) throw groupNotFound(of.groupId);
  return { run: group.run, stage: group.stage, group: group.key };
}

/**
 * W11: missing and NaN rewards match no range. SQLite stores the text 'NaN' and Postgres its own NaN; both would sort
 * it above every number.
 */
function rewardConditions(engine: Engine, { minReward, maxReward }: RolloutFilter): RawBuilder<boolean>[] {
  if (minReward === undefined && maxReward === undefined) return [];
  const reward = sql`(select ${SHOWN_REWARD} from (select 1 as one) as x
    left join ${engine.sql.table('trajectories')} as t
    on t.tree = r.tree and t.key = r.trajectory and not t.hidden)`;
  const conditions = [sql<boolean>`${reward} <> 'NaN'`];
  if (minReward !== undefined) conditions.push(sql<boolean>`${reward} >= ${minReward}`);
  if (maxReward !== undefined) conditions.push(sql<boolean>`${reward} <= ${maxReward}`);
  return conditions;
}

/** Condition for rows after the cursor, in the order of the index of the run, stage or group. */
function isBehind(place: FilterKeys, { stage, groupNumber, number }: RolloutPosition): RawBuilder<boolean> {
  const [at, group, own] = [stage, groupNumber, number].map((value) => sql`cast(${value} as bigint)`);
  if (place.group !== undefined) return sql<boolean>`r.number > ${own}`;
  return place.stage === undefined
    ? sql<boolean>`(r.stage, r.group_number, r.number) > (${at}, ${group}, ${own})`
    : sql<boolean>`(r.group_number, r.number) > (${group}, ${own})`;
}

export async function updateRollout(
  engine: Engine,
  caller: Caller,
  id: string,
  attempt: number | undefined,
  changes: RolloutChanges,
): Promise<Rollout> {
  const rollout = await writeAs(engine, caller, async (tx) => {
    const row = await lockRollout(tx, id);
    requireClaimer(holdingOf(row), attempt, caller);
    const { metrics, timings, environmentIds, ...own } = changes;
    const ofAttempt = { metrics, timings, environmentIds };
    if (hasChanges(own)) requireLease(holdingOf(row), attempt);
    const shown = hasChanges(ofAttempt) ? await updateAttempt(tx, row, attempt, ofAttempt) : undefined;
    if (hasChanges(own) || shown !== undefined) {
      await tx.readNow();
      await writeWatched(tx, 'rollouts', row.key, {
        ...shown,
        ...columnsOf(own),
        ...firstGivenAfter(row, columnsOf(own)),
      });
    }
    return readWritten(tx, row);
  });
  engine.changes.announce([runHint(rollout.run.key)]);
  return rollout;
}

/** Returns whether anything changes. A present but undefined `maxTurns` clears the value. */
function hasChanges(changes: object): boolean {
  return 'maxTurns' in changes || Object.values(changes).some((change) => change !== undefined);
}

/** Changes that belong to an attempt (M3). */
interface AttemptChanges {
  readonly metrics: RolloutChanges['metrics'] | undefined;
  readonly timings: RolloutChanges['timings'] | undefined;
  readonly environmentIds: RolloutChanges['environmentIds'] | undefined;
}

/**
 * Returns the values that the rollout's row copies; undefined if they do not change. Errors: NO_ATTEMPT,
 * ENVIRONMENT_NOT_FOUND, INVALID_REQUEST.
 */
async function updateAttempt(
  tx: Transaction,
  row: LockedRollout,
  number: number | undefined,
  { metrics, timings, environmentIds }: AttemptChanges,
): Promise<AttemptValues | undefined> {
  const attempt = await readAttemptRow(tx, row.key, requireBegun(holdingOf(row), number));
  if (environmentIds !== undefined) await replaceEnvironments(tx, row, attempt.number, environmentIds);
  if (metrics === undefined && timings === undefined) return undefined;
  const changed = changedColumns({
    metrics: metrics && bindMetrics(mergeMetrics(attempt.metrics, metrics)),
    timings: timings && bindTimings(mergeTimings(attempt.timings, timings)),
  });
  return changeAttempt(tx, row, attempt, changed);
}

function columnsOf(changes: Omit<RolloutChanges, keyof AttemptChanges>) {
  return changedColumns({
    labels: changes.labels && bindLabels(changes.labels),
    priority: changes.priority,
    max_turns: 'maxTurns' in changes ? (changes.maxTurns ?? null) : undefined,
    max_attempts: changes.maxAttempts,
    model_uri: changes.modelUri,
    status_message: changes.statusMessage,
    phase: changes.phase,
    metadata_json: changes.metadataJson,
  });
}

/** Errors: ENVIRONMENT_NOT_FOUND, INVALID_REQUEST (environment of another run). */
async function replaceEnvironments(
  tx: Transaction,
  row: LockedRollout,
  attempt: bigint,
  ids: readonly string[],
): Promise<void> {
  const { namespace, run } = row;
  const found =
    ids.length === 0
      ? []
      : await tx.db
          .selectFrom('environments')
          .select(['key', 'id', 'run'])
          .where('namespace', '=', namespace)
          .where('id', 'in', ids)
          .execute();
  const byId = new Map(found.map((each) => [each.id, each]));
  const links = ids.map((id) => {
    const environment = byId.get(id);
    if (environment === undefined) throw environmentNotFound(id);
    if (environment.run !== run) {
      throw invalidField(
        'environment_ids',
        `names ${id}, which belongs to another run: use environments of the rollout's run`,
      );
    }
    return { rollout: row.key, attempt, environment: environment.key, namespace };
  });
  await tx.db
    .deleteFrom('rollout_environments')
    .where('rollout', '=', row.key)
    .where('attempt', '=', attempt)
    .execute();
  if (links.length > 0) await tx.db.insertInto('rollout_environments').values(links).execute();
}
