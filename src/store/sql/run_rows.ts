import { type ExpressionBuilder, sql } from 'kysely';
import { parseInstant } from '../../domain/instant.ts';
import type { Status } from '../../domain/lifecycle.ts';
import type { Plan, Run } from '../../domain/run.ts';
import type { BookView } from '../contract/experiment.ts';
import type { RunPlace } from '../contract/run.ts';
import type { Db, Engine, Tx } from './engine.ts';
import type { RunsTable, Tables } from './tables.ts';
import { isSet, readLabels, readMetrics, readOptionalTime, readReal } from './values.ts';

export type RunRow = Awaited<ReturnType<ReturnType<typeof selectRuns>['execute']>>[number];

/** Rows of runs (`r`), with what they show of their experiment, root, parent and main trajectory. Hidden ones are in it. */
export function selectRuns(engine: Engine, db: Db | Tx, view: BookView) {
  // JSON of any size: the BASIC view does not even read it.
  const large = (column: string) => (view === 'FULL' ? sql<string>`${sql.ref(`r.${column}`)}` : sql<string>`''`);
  return db
    .selectFrom('runs as r')
    .innerJoin('experiments as e', 'e.key', 'r.experiment')
    .innerJoin('runs as root', 'root.key', 'r.tree')
    .leftJoin('runs as p', 'p.key', 'r.parent')
    .leftJoin('trajectories as m', (join) =>
      join.onRef('m.tree', '=', 'r.main_tree').onRef('m.key', '=', 'r.main_trajectory').on('m.hidden', '=', 0),
    )
    .select([
      'r.key',
      'r.id',
      'r.experiment',
      'r.tree',
      'r.number',
      'r.name',
      'r.description',
      'r.labels',
      'r.plan',
      'r.parent',
      'r.branch_point',
      'r.status',
      'r.status_message',
      'r.phase',
      'r.metrics',
      'r.heartbeat_timeout_ms',
      'r.fail_when_stale',
      'r.heartbeat_time',
      'r.start_time',
      'r.end_time',
      'r.create_time',
      'r.update_time',
      'r.revision',
      'e.id as experiment_id',
      'e.name as experiment_name',
      'root.id as tree_id',
      'p.id as parent_id',
      'm.id as main_id',
      'm.next_step_number as main_next_step_number',
      'm.reward_sum as main_reward_sum',
    ])
    .select([
      large('config_json').as('config_json'),
      large('config_overrides_json').as('config_overrides_json'),
      large('metadata_json').as('metadata_json'),
      large('result_json').as('result_json'),
    ])
    .select((eb) => isStale(engine, eb).as('stale'));
}

/** Whether a run (`r`) is stale now, by the database's clock. */
export function isStale(engine: Engine, eb: ExpressionBuilder<Tables & { r: RunsTable }, 'r'>) {
  return eb.and([
    eb('r.status', 'in', ['INITIALIZING', 'RUNNING']),
    eb('r.stale_time', 'is not', null),
    eb('r.stale_time', '<', engine.hoursAgo(0)),
  ]);
}

/** Rows of runs that are there, for those who may see them. */
export function selectVisibleRuns(engine: Engine, db: Db | Tx, namespace: string, view: BookView) {
  return selectRuns(engine, db, view).where('r.namespace', '=', namespace).where(sql<boolean>`not r.hidden`);
}

/** The run of an id, or of a name in an experiment, FULL view; undefined if none is there. */
export async function findRun(
  engine: Engine,
  db: Db | Tx,
  namespace: string,
  place: RunPlace,
  view: BookView = 'FULL',
): Promise<Run | undefined> {
  const visible = selectVisibleRuns(engine, db, namespace, view);
  const row = await ('id' in place
    ? visible.where('r.id', '=', place.id)
    : visible
        .where('r.name', '=', place.name)
        .where('e.name', '=', place.experimentName)
        .where(sql<boolean>`not e.hidden`)
  ).executeTakeFirst();
  return row === undefined ? undefined : readRun(row);
}

/** FULL view; undefined if it is not there any more. */
export async function findRunByKey(
  engine: Engine,
  db: Db | Tx,
  namespace: string,
  key: bigint,
): Promise<Run | undefined> {
  const row = await selectVisibleRuns(engine, db, namespace, 'FULL').where('r.key', '=', key).executeTakeFirst();
  return row === undefined ? undefined : readRun(row);
}

export function readRun(row: RunRow): Run {
  return {
    key: row.key,
    tree: { key: row.tree, id: row.tree_id },
    id: row.id,
    number: row.number,
    experiment: { key: row.experiment, id: row.experiment_id, name: row.experiment_name },
    name: row.name,
    description: row.description,
    configJson: row.config_json,
    configOverridesJson: row.config_overrides_json,
    labels: readLabels(row.labels),
    metadataJson: row.metadata_json,
    plan: readPlan(row.plan),
    parent:
      row.parent === null || row.branch_point === null
        ? undefined
        : { key: row.parent, id: row.parent_id ?? '', branchPoint: row.branch_point },
    mainTrajectory:
      row.main_id === null || row.main_next_step_number === null || row.main_reward_sum === null
        ? undefined
        : { id: row.main_id, nextStepNumber: row.main_next_step_number, rewardSum: readReal(row.main_reward_sum) },
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

/** A plan as JSON text; empty: none. */
export function bindPlan(plan: Plan | undefined): string {
  return plan === undefined ? '' : JSON.stringify(plan);
}

export function readPlan(text: string): Plan | undefined {
  return text === '' ? undefined : (JSON.parse(text) as Plan);
}
