import { type ExpressionBuilder, type RawBuilder, sql } from 'kysely';
import { type Instant, parseInstant } from '../../domain/instant.ts';
import type { Status } from '../../domain/lifecycle.ts';
import type { Plan, Run } from '../../domain/run.ts';
import type { BookView } from '../contract/experiment.ts';
import type { RunPlace } from '../contract/run.ts';
import type { Db, Engine, Tx } from './engine.ts';
import type { RunsTable, Tables } from './tables.ts';
import { isSet, readLabels, readMetrics, readReal } from './values.ts';

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

export type RunQuery = ReturnType<typeof selectRuns>;

/** The runs of a query, in its order, by whole pages: as arrays, which cost less than objects. */
export async function readRuns(engine: Engine, query: RunQuery): Promise<Run[]> {
  const reader = new RunReader();
  // A query of Kysely says what it is as raw SQL does.
  const rows = await engine.rows<RunValues>(query as unknown as RawBuilder<unknown>);
  return rows.map((row) => reader.read(row));
}

/** The run of an id, or of a name in an experiment, FULL view unless told otherwise; undefined if none is there. */
export async function findRun(
  engine: Engine,
  db: Db | Tx,
  namespace: string,
  place: RunPlace | { readonly key: bigint },
  view: BookView = 'FULL',
): Promise<Run | undefined> {
  const row = await at(selectVisibleRuns(engine, db, namespace, view), place).executeTakeFirst();
  return row === undefined ? undefined : readRun(row);
}

function at(query: RunQuery, place: RunPlace | { readonly key: bigint }): RunQuery {
  if ('key' in place) return query.where('r.key', '=', place.key);
  if ('id' in place) return query.where('r.id', '=', place.id);
  return query
    .where('r.name', '=', place.name)
    .where('e.name', '=', place.experimentName)
    .where(sql<boolean>`not e.hidden`);
}

/** Drivers give the values of an object in the order of the columns. */
export function readRun(row: object): Run {
  return new RunReader().read(Object.values(row) as unknown as RunValues);
}

type Int = number | bigint;

/** What `selectRuns` selects, in its order. */
type RunValues = readonly [
  key: Int,
  id: string,
  experiment: Int,
  tree: Int,
  number: Int,
  name: string,
  description: string,
  labels: string,
  plan: string,
  parent: Int | null,
  branchPoint: Int | null,
  status: Status,
  statusMessage: string,
  phase: string,
  metrics: string,
  heartbeatTimeoutMs: Int,
  failWhenStale: boolean | Int,
  heartbeatTime: string | null,
  startTime: string | null,
  endTime: string | null,
  createTime: string,
  updateTime: string,
  revision: Int,
  experimentId: string,
  experimentName: string,
  treeId: string,
  parentId: string | null,
  mainId: string | null,
  mainNextStepNumber: Int | null,
  mainRewardSum: number | string | bigint | null,
  configJson: string,
  configOverridesJson: string,
  metadataJson: string,
  resultJson: string,
  stale: boolean | Int,
];

const NO_LABELS: ReadonlyMap<string, string> = new Map();

/** Reads runs one after another; what many of them share is read once. */
class RunReader {
  private experiment: Run['experiment'] = { key: -1n, id: '', name: '' };
  private tree: Run['tree'] = { key: -1n, id: '' };
  private planText = '';
  private plan: Plan | undefined;
  private timeText = '';
  private time: Instant = 0n;

  read(values: RunValues): Run {
    const [
      key,
      id,
      experiment,
      tree,
      number,
      name,
      description,
      labels,
      plan,
      parent,
      branchPoint,
      status,
      statusMessage,
      phase,
      metrics,
      timeoutMs,
      failWhenStale,
      beat,
      start,
      end,
      create,
      update,
      revision,
      experimentId,
      experimentName,
      treeId,
      parentId,
      mainId,
      mainEnd,
      mainReward,
      configJson,
      configOverridesJson,
      metadataJson,
      resultJson,
      stale,
    ] = values;
    return {
      key: BigInt(key),
      tree: this.treeOf(BigInt(tree), treeId),
      id,
      number: BigInt(number),
      experiment: this.experimentOf(BigInt(experiment), experimentId, experimentName),
      name,
      description,
      configJson,
      configOverridesJson,
      labels: labels === '{}' ? NO_LABELS : readLabels(labels),
      metadataJson,
      plan: this.planOf(plan),
      parent:
        parent === null || branchPoint === null
          ? undefined
          : { key: BigInt(parent), id: parentId ?? '', branchPoint: BigInt(branchPoint) },
      mainTrajectory:
        mainId === null || mainEnd === null || mainReward === null
          ? undefined
          : { id: mainId, nextStepNumber: BigInt(mainEnd), rewardSum: readReal(mainReward) },
      status,
      statusMessage,
      phase,
      metrics: readMetrics(metrics),
      resultJson,
      heartbeatTimeoutMs: Number(timeoutMs),
      failWhenStale: isSet(failWhenStale),
      heartbeatTime: this.optionalTimeOf(beat),
      stale: isSet(stale),
      startTime: this.optionalTimeOf(start),
      endTime: this.optionalTimeOf(end),
      createTime: this.timeOf(create),
      updateTime: this.timeOf(update),
      revision: BigInt(revision),
    };
  }

  private experimentOf(key: bigint, id: string, name: string): Run['experiment'] {
    if (key !== this.experiment.key) this.experiment = { key, id, name };
    return this.experiment;
  }

  private treeOf(key: bigint, id: string): Run['tree'] {
    if (key !== this.tree.key) this.tree = { key, id };
    return this.tree;
  }

  private planOf(text: string): Plan | undefined {
    if (text !== this.planText) {
      this.plan = readPlan(text);
      this.planText = text;
    }
    return this.plan;
  }

  private timeOf(text: string): Instant {
    if (text !== this.timeText) {
      this.time = parseInstant(text);
      this.timeText = text;
    }
    return this.time;
  }

  private optionalTimeOf(text: string | null): Instant | undefined {
    return text === null ? undefined : this.timeOf(text);
  }
}

/** A plan as JSON text; empty: none. */
export function bindPlan(plan: Plan | undefined): string {
  return plan === undefined ? '' : JSON.stringify(plan);
}

export function readPlan(text: string): Plan | undefined {
  return text === '' ? undefined : (JSON.parse(text) as Plan);
}
