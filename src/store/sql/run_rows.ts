import { type CompiledQuery, type ExpressionBuilder, sql } from 'kysely';
import type { Run } from '../../domain/run.ts';
import type { BookView } from '../contract/experiment.ts';
import type { RunPlace } from '../contract/run.ts';
import type { Db, Engine, Tx } from './engine.ts';
import { type RunNames, RunReader, type RunValues } from './run_values.ts';
import { padded } from './statement_shapes.ts';
import type { RunsTable, Tables } from './tables.ts';

/** Rows of runs (`r`), with what they show of their main trajectory; hidden ones are in it. Their names of others come by `readRuns` or `findRun`. */
export function selectRuns(engine: Engine, db: Db | Tx, view: BookView) {
  return (
    db
      .selectFrom('runs as r')
      .leftJoin('trajectories as m', (join) =>
        join.onRef('m.tree', '=', 'r.main_tree').onRef('m.key', '=', 'r.main_trajectory').on('m.hidden', '=', 0),
      )
      .select(['r.key', 'r.id', 'r.experiment', 'r.tree', 'r.number'])
      .select([unlessEmpty('name', ''), unlessEmpty('description', ''), unlessEmpty('labels', '{}')])
      .select([unlessEmpty('plan', ''), 'r.parent', 'r.branch_point', 'r.status', unlessEmpty('status_message', '')])
      .select([unlessEmpty('phase', ''), unlessEmpty('metrics', '{}'), unlessEmpty('heartbeat_timeout_ms', 0)])
      .select(['r.fail_when_stale', 'r.heartbeat_time', 'r.start_time', 'r.end_time', 'r.create_time'])
      .select(sql<string | null>`nullif(r.update_time, r.create_time)`.as('changed_time'))
      .select(['r.revision', 'm.id as main_id', 'm.next_step_number as main_next_step_number'])
      .select('m.reward_sum as main_reward_sum')
      .select((eb) => isStale(engine, eb).as('stale'))
      // JSON of any size: the BASIC view does not even read it.
      .$if(view === 'FULL', (all) =>
        all.select(['r.config_json', 'r.config_overrides_json', 'r.metadata_json', 'r.result_json']),
      )
  );
}

/** Null where there is nothing: drivers make a value of everything else, and most runs have little of what runs can have. */
function unlessEmpty<Column extends keyof RunsTable & string, Empty extends string | number>(
  column: Column,
  empty: Empty,
) {
  return sql<Empty | null>`nullif(${sql.ref(`r.${column}`)}, ${sql.lit(empty)})`.as(column);
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

/** Places in `RunValues`. */
const [KEY, ID, EXPERIMENT, TREE, PARENT] = [0, 1, 2, 3, 9] as const;

/** The runs of a query, in its order, by whole pages: as arrays, which cost less than objects. */
export async function readRuns(
  engine: Engine,
  namespace: string,
  query: RunQuery | CompiledQuery<unknown>,
): Promise<Run[]> {
  return nameRuns(engine, namespace, await engine.rows<RunValues>('compile' in query ? query.compile() : query));
}

/** What all runs of a tree show of others. */
export type TreeNames = Pick<Run, 'tree' | 'experiment'>;

/**
 * Names of others are looked for once each, not joined to every row, and not again where they are known. A run whose others are gone by then is gone as
 * well.
 */
export async function nameRuns(
  engine: Engine,
  namespace: string,
  rows: readonly RunValues[],
  known?: TreeNames,
): Promise<Run[]> {
  if (rows.length === 0) return [];
  const [experiments, ids] = await Promise.all([
    experimentsOf(engine, namespace, rows, known?.experiment),
    idsOf(engine, namespace, rows, known?.tree),
  ]);
  const reader = new RunReader();
  return rows.flatMap((row) => {
    const experiment = experiments.get(Number(row[EXPERIMENT]));
    const treeId = ids.get(Number(row[TREE]));
    const parentId = row[PARENT] === null ? null : ids.get(Number(row[PARENT]));
    if (experiment === undefined || treeId === undefined || parentId === undefined) return [];
    return [reader.read(row, { ...experiment, treeId, parentId })];
  });
}

async function experimentsOf(
  engine: Engine,
  namespace: string,
  rows: readonly RunValues[],
  known: Run['experiment'] | undefined,
) {
  const names = new Map<number, Pick<RunNames, 'experimentId' | 'experimentName'>>();
  if (known !== undefined) names.set(Number(known.key), { experimentId: known.id, experimentName: known.name });
  const missing = [...new Set(rows.map((row) => Number(row[EXPERIMENT])))].filter((key) => !names.has(key));
  if (missing.length === 0) return names;
  const keys = padded(missing.map(BigInt));
  const query = engine.kept.of('experiments of runs', [namespace, keys], (of, among) =>
    engine.db
      .selectFrom('experiments')
      .select(['key', 'id', 'name'])
      .where('namespace', '=', of)
      .where('key', 'in', among),
  );
  const { rows: found } = await engine.db.executeQuery(query);
  for (const { key, id, name } of found) names.set(Number(key), { experimentId: id, experimentName: name });
  return names;
}

/** Ids of the roots and parents of runs by their keys: most are on the page themselves. */
async function idsOf(
  engine: Engine,
  namespace: string,
  rows: readonly RunValues[],
  known: Run['tree'] | undefined,
): Promise<Map<number, string>> {
  const ids = new Map<number, string>();
  if (known !== undefined) ids.set(Number(known.key), known.id);
  for (const row of rows) ids.set(Number(row[KEY]), row[ID]);
  const wanted = new Set<number>();
  for (const row of rows) {
    wanted.add(Number(row[TREE]));
    if (row[PARENT] !== null) wanted.add(Number(row[PARENT]));
  }
  const missing = [...wanted].filter((key) => !ids.has(key));
  if (missing.length === 0) return ids;
  const query = engine.kept.of('ids of runs', [namespace, padded(missing.map(BigInt))], (of, among) =>
    engine.db.selectFrom('runs').select(['key', 'id']).where('namespace', '=', of).where('key', 'in', among),
  );
  const { rows: found } = await engine.db.executeQuery(query);
  for (const { key, id } of found) ids.set(Number(key), id);
  return ids;
}

/** The run of an id, or of a name in an experiment, FULL view unless told otherwise; undefined if none is there. */
export async function findRun(
  engine: Engine,
  db: Db | Tx,
  namespace: string,
  place: RunPlace | { readonly key: bigint },
  view: BookView = 'FULL',
): Promise<Run | undefined> {
  const { rows } = await db.executeQuery(oneRun(engine, namespace, place, view));
  const row = rows[0];
  return row === undefined ? undefined : readRun(row);
}

function oneRun(
  engine: Engine,
  namespace: string,
  place: RunPlace | { readonly key: bigint },
  view: BookView,
): CompiledQuery<NamedRow> {
  const { kept, db } = engine;
  const all = (of: string) => withNames(selectVisibleRuns(engine, db, of, view));
  if ('key' in place) {
    return kept.of(`run by key ${view}`, [namespace, place.key], (of, key) => all(of).where('r.key', '=', key));
  }
  if ('id' in place) {
    return kept.of(`run by id ${view}`, [namespace, place.id], (of, id) => all(of).where('r.id', '=', id));
  }
  const { name, experimentName } = place;
  return kept.of(`run by name ${view}`, [namespace, name, experimentName], (of, own, experiment) =>
    all(of).where('r.name', '=', own).where('e.name', '=', experiment).where(sql<boolean>`not e.hidden`),
  );
}

/** For one row: in one statement, so that it is of one moment, also in a transaction. */
function withNames(query: RunQuery) {
  return query
    .innerJoin('experiments as e', 'e.key', 'r.experiment')
    .innerJoin('runs as root', 'root.key', 'r.tree')
    .leftJoin('runs as p', 'p.key', 'r.parent')
    .select(['e.id as experiment_id', 'e.name as experiment_name', 'root.id as tree_id', 'p.id as parent_id']);
}

type NamedRow = Awaited<ReturnType<ReturnType<typeof withNames>['execute']>>[number];

function readRun({ experiment_id, experiment_name, tree_id, parent_id, ...row }: NamedRow): Run {
  const names = { experimentId: experiment_id, experimentName: experiment_name, treeId: tree_id, parentId: parent_id };
  // Drivers give the values of an object in the order of the columns.
  return new RunReader().read(Object.values(row) as unknown as RunValues, names);
}
