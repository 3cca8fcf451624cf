import { type CompiledQuery, type ExpressionBuilder, sql } from 'kysely';
import type { Run } from '../../../../domain/run.ts';
import type { RunReference } from '../../../contract/run.ts';
import type { View } from '../../../contract/view.ts';
import type { Db, Engine } from '../../kit/engine.ts';
import type { RunsTable, Tables } from '../../kit/tables.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { RunReader, type RunValues } from './values.ts';

/** Selects runs (`r`), including hidden ones, with columns of their main trajectory, parent, tree and experiment. */
export function selectRuns(engine: Engine, db: Db, view: View) {
  return (
    selectBareRuns(engine, db)
      // Subqueries run only for returned rows, whatever the plan, and read the same snapshot.
      .select((eb) => [
        idOf(eb, 'r.parent').as('parent_id'),
        idOf(eb, 'r.tree').as('tree_id'),
        eb.selectFrom('experiments').select('id').whereRef('key', '=', 'r.experiment').as('experiment_id'),
        eb.selectFrom('experiments').select('name').whereRef('key', '=', 'r.experiment').as('experiment_name'),
      ])
      // The JSON columns can be large, so the BASIC view does not read them.
      .$if(view === 'FULL', (all) =>
        all
          .select(['r.config_json', 'r.config_overrides_json', 'r.metadata_json', 'r.result_json'])
          .select('r.removed_config_paths'),
      )
  );
}

/** BASIC view without the columns of other runs and experiments. */
export function selectBareRuns(engine: Engine, db: Db) {
  return db
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
    .select((eb) => isStale(engine, eb).as('stale'));
}

/** Subquery for the id of the run that a run (`r`) refers to. */
function idOf(eb: ExpressionBuilder<Tables & { r: RunsTable }, 'r'>, key: 'r.parent' | 'r.tree') {
  return eb.selectFrom('runs as other').select('other.id').whereRef('other.key', '=', key);
}

/** Returns null for an empty value. Drivers convert every other value, and most runs leave most columns empty. */
function unlessEmpty<Column extends keyof RunsTable & string, Empty extends string | number>(
  column: Column,
  empty: Empty,
) {
  return sql<Empty | null>`nullif(${sql.ref(`r.${column}`)}, ${sql.lit(empty)})`.as(column);
}

/** Condition that a run (`r`) is stale now, by the clock of the database. */
export function isStale(engine: Engine, eb: ExpressionBuilder<Tables & { r: RunsTable }, 'r'>) {
  return eb.and([
    eb('r.status', 'in', ['INITIALIZING', 'RUNNING']),
    eb('r.stale_time', 'is not', null),
    eb('r.stale_time', '<', engine.hoursAgo(0)),
  ]);
}

/** Selects visible runs of a namespace. */
export function selectVisibleRuns(engine: Engine, db: Db, namespace: string, view: View) {
  return selectRuns(engine, db, view).where('r.namespace', '=', namespace).where(sql<boolean>`not r.hidden`);
}

export type RunQuery = ReturnType<typeof selectRuns>;
type RunRow = Awaited<ReturnType<RunQuery['execute']>>[number];

/** Returns the runs of a query, in its order. Reads arrays, which cost less than objects. */
export async function readRuns(engine: Engine, query: RunQuery | CompiledQuery<unknown>): Promise<Run[]> {
  const rows = await engine.rows<RunValues>('compile' in query ? query.compile() : query);
  const reader = new RunReader();
  return rows.map((row) => reader.read(row));
}

/** Returns a run by id, key, or name in an experiment, by default in FULL view; undefined if there is none. */
export async function findRun(
  { engine, db, namespace }: ReadScope,
  reference: RunReference | { readonly key: bigint },
  view: View = 'FULL',
): Promise<Run | undefined> {
  const { rows } = await db.executeQuery(oneRun(engine, namespace, reference, view));
  const row = rows[0];
  return row === undefined ? undefined : readRun(row);
}

function oneRun(
  engine: Engine,
  namespace: string,
  reference: RunReference | { readonly key: bigint },
  view: View,
): CompiledQuery<RunRow> {
  const { kept, db } = engine;
  const all = (of: string) => selectVisibleRuns(engine, db, of, view);
  if ('key' in reference) {
    return kept.of(`run by key ${view}`, [namespace, reference.key], (of, key) => all(of).where('r.key', '=', key));
  }
  if ('id' in reference) {
    return kept.of(`run by id ${view}`, [namespace, reference.id], (of, id) => all(of).where('r.id', '=', id));
  }
  const { name, experimentName } = reference;
  return kept.of(`run by name ${view}`, [namespace, name, experimentName], (of, own, experiment) =>
    all(of)
      .innerJoin('experiments as e', 'e.key', 'r.experiment')
      .where('r.name', '=', own)
      .where('e.name', '=', experiment)
      .where(sql<boolean>`not e.hidden`),
  );
}

function readRun(row: RunRow): Run {
  // Drivers return the values of an object in the order of the columns.
  return new RunReader().read(Object.values(row) as unknown as RunValues);
}
