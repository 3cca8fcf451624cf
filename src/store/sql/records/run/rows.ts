import { type CompiledQuery, type ExpressionBuilder, sql } from 'kysely';
import { runNotFound } from '../../../../domain/errors.ts';
import { formatInstant, parseInstant } from '../../../../domain/instant.ts';
import type { Pause } from '../../../../domain/lease.ts';
import type { Status } from '../../../../domain/lifecycle.ts';
import type { Plan, Run } from '../../../../domain/run.ts';
import type { View } from '../../../contract/request.ts';
import type { RunReference } from '../../../contract/run.ts';
import type { Db, Engine } from '../../kit/engine.ts';
import { padded } from '../../kit/kept_queries.ts';
import { RUNS } from '../../kit/tables/runs.ts';
import { columnsIn } from '../../kit/tables/selection.ts';
import type { RunsTable, Tables } from '../../kit/tables.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { isSet, readLabels, readList, readMetrics, readOptionalTime, readReal } from '../../kit/values.ts';

/**
 * Selects visible runs (`r`) of a namespace, with columns of their main trajectory (`m`), parent, tree and experiment.
 */
export function selectRuns(engine: Engine, db: Db, namespace: string, view: View) {
  return (
    db
      .selectFrom('runs as r')
      .leftJoin('trajectories as m', (join) =>
        join.onRef('m.tree', '=', 'r.main_tree').onRef('m.key', '=', 'r.main_trajectory').on('m.hidden', '=', 0),
      )
      .select(columnsIn(RUNS, 'r', view, UNREAD))
      .select(['m.id as main_id', 'm.next_step_number as main_end', 'm.reward_sum as main_reward'])
      // Subqueries run only for returned rows, whatever the plan.
      .select((eb) => [
        eb.selectFrom('runs as p').select('p.id').whereRef('p.key', '=', 'r.parent').as('parent_id'),
        eb.selectFrom('runs as t').select('t.id').whereRef('t.key', '=', 'r.tree').as('tree_id'),
        eb.selectFrom('experiments as x').select('x.id').whereRef('x.key', '=', 'r.experiment').as('experiment_id'),
        eb.selectFrom('experiments as x').select('x.name').whereRef('x.key', '=', 'r.experiment').as('experiment_name'),
        isStale(engine, eb).as('stale'),
      ])
      .select((view === 'FULL' ? sql<string>`r.removed_config_paths` : sql<string>`'[]'`).as('removed_config_paths'))
      .where('r.namespace', '=', namespace)
      .where(sql<boolean>`not r.hidden`)
  );
}

/** Columns that `readRun` does not need, and a large one that is not JSON of a client. */
const UNREAD = [
  'namespace',
  'removed_config_paths',
  'main_tree',
  'main_trajectory',
  'pauses',
  'stale_time',
  'status_changes',
  'mark',
  'hidden',
] as const;

/** Condition that a run (`r`) is stale now, by the clock of the database. */
export function isStale(engine: Engine, eb: ExpressionBuilder<Tables & { r: RunsTable }, 'r'>) {
  return eb.and([
    eb('r.status', 'in', ['INITIALIZING', 'RUNNING']),
    eb('r.stale_time', 'is not', null),
    eb('r.stale_time', '<', engine.sql.hoursAgo(0)),
  ]);
}

type RunRow = Awaited<ReturnType<ReturnType<typeof selectRuns>['execute']>>[number];

/** Returns a run by id, key, or name in an experiment, by default in FULL view; undefined if there is none. */
export async function findRun(
  { engine, db, namespace }: ReadScope,
  reference: RunReference | { readonly key: bigint },
  view: View = 'FULL',
): Promise<Run | undefined> {
  const { rows } = await db.executeQuery(oneRun(engine, namespace, reference, view));
  return rows[0] && readRun(rows[0]);
}

function oneRun(
  engine: Engine,
  namespace: string,
  reference: RunReference | { readonly key: bigint },
  view: View,
): CompiledQuery<RunRow> {
  const { kept, db } = engine;
  const all = (of: string) => selectRuns(engine, db, of, view);
  if ('key' in reference) {
    return kept.byKey(`run by key ${view}`, [namespace, reference.key], (of, key) => all(of).where('r.key', '=', key));
  }
  if ('id' in reference) {
    return kept.byKey(`run by id ${view}`, [namespace, reference.id], (of, id) => all(of).where('r.id', '=', id));
  }
  const { name, experimentName } = reference;
  return kept.byKey(`run by name ${view}`, [namespace, name, experimentName], (of, own, experiment) =>
    all(of)
      .innerJoin('experiments as e', 'e.key', 'r.experiment')
      .where('e.namespace', '=', of)
      .where('r.name', '=', own)
      .where('e.name', '=', experiment)
      .where(sql<boolean>`not e.hidden`),
  );
}

export function readRun(row: RunRow): Run {
  const { parent, branch_point: branchPoint, main_id: mainId, main_end: mainEnd, main_reward: mainReward } = row;
  return {
    key: row.key,
    tree: { key: row.tree, id: row.tree_id ?? '' },
    id: row.id,
    number: row.number,
    experiment: { key: row.experiment, id: row.experiment_id ?? '', name: row.experiment_name ?? '' },
    name: row.name,
    description: row.description,
    configJson: row.config_json,
    configOverridesJson: row.config_overrides_json,
    removedConfigPaths: readList(row.removed_config_paths),
    labels: readLabels(row.labels),
    metadataJson: row.metadata_json,
    plan: readPlan(row.plan),
    parent: parent === null || branchPoint === null ? undefined : { key: parent, id: row.parent_id ?? '', branchPoint },
    mainTrajectory:
      mainId === null || mainEnd === null || mainReward === null
        ? undefined
        : { id: mainId, nextStepNumber: mainEnd, rewardSum: readReal(mainReward) },
    status: row.status as Status,
    statusMessage: row.status_message,
    phase: row.phase,
    metrics: readMetrics(row.metrics),
    resultJson: row.result_json,
    heartbeatTimeoutMs: Number(row.heartbeat_timeout_ms),
    failWhenStale: isSet(row.fail_when_stale),
    heartbeatTime: readOptionalTime(row.heartbeat_time),
    stale: isSet(row.stale),
    startTime: readOptionalTime(row.start_time),
    endTime: readOptionalTime(row.end_time),
    createTime: parseInstant(row.create_time),
    updateTime: parseInstant(row.update_time),
    revision: row.revision,
  };
}

/** Returns the row keys of runs, in the order requested. Errors: RUN_NOT_FOUND. */
export async function runKeys({ db, namespace }: ReadScope, runs: readonly string[]): Promise<bigint[]> {
  if (runs.length === 0) return [];
  const rows = await db
    .selectFrom('runs')
    .select(['id', 'key'])
    .where('namespace', '=', namespace)
    .where('id', 'in', padded(runs))
    .where('hidden', '=', 0)
    .execute();
  const keys = new Map(rows.map(({ id, key }) => [id, key]));
  return runs.map((id) => {
    const key = keys.get(id);
    if (key === undefined) throw runNotFound(id);
    return key;
  });
}

/** Encodes a plan as JSON text; no plan is an empty text. */
export function bindPlan(plan: Plan | undefined): string {
  return plan === undefined ? '' : JSON.stringify(plan);
}

export function readPlan(text: string): Plan | undefined {
  return text === '' ? undefined : (JSON.parse(text) as Plan);
}

/**
 * Encodes pauses as JSON text: a list of pairs of times. A pause that has not ended has one time. No pauses are an
 * empty text.
 */
export function bindPauses(pauses: readonly Pause[]): string {
  if (pauses.length === 0) return '';
  const pairs = pauses.map(({ start, end }) => (end === undefined ? [start] : [start, end]));
  return JSON.stringify(pairs.map((times) => times.map((time) => formatInstant(time, 6))));
}

export function readPauses(text: string): readonly Pause[] {
  if (text === '') return [];
  const pairs = JSON.parse(text) as readonly (readonly [string, string?])[];
  return pairs.map(([start, end]) => ({
    start: parseInstant(start),
    end: end === undefined ? undefined : parseInstant(end),
  }));
}
