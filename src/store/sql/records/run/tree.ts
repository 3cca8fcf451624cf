import { sql } from 'kysely';
import type { Run } from '../../../../domain/run.ts';
import type { Page } from '../../../contract/page.ts';
import type { Db, Engine } from '../../kit/engine.ts';
import { padded } from '../../kit/statement_shapes.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { selectBareRuns } from './rows.ts';
import { ID, KEY, PARENT, type RunNames, RunReader, type RunValues } from './values.ts';

export async function listRunTree(scope: ReadScope, runId: string, page: Page<bigint>): Promise<Run[] | undefined> {
  const { engine, namespace } = scope;
  const { after = 0n, limit } = page;
  const query = engine.kept.page('run tree', limit, [namespace, runId, after], (most, of, id, behind) =>
    selectBareRuns(engine, scope.db)
      .where('r.namespace', '=', of)
      .where(sql<boolean>`not r.hidden`)
      .where('r.tree', '=', selectRun(scope.db, of, id).select('one.tree'))
      .where('r.key', '>', behind)
      .orderBy('r.key')
      .limit(most),
  );
  const [names, rows] = await Promise.all([namesOfTree(engine, namespace, runId), engine.rows<RunValues>(query)]);
  // A deletion between the two reads must not look like the end of the tree.
  const isThere =
    names !== undefined && (rows.length > 0 || (await namesOfTree(engine, namespace, runId)) !== undefined);
  if (!isThere) return undefined;
  const parents = await parentsOf(scope, rows);
  // A parent was purged since, and its branches with it or before: read again.
  if (parents === undefined) return listRunTree(scope, runId, page);
  const reader = new RunReader();
  return rows.map((row) => reader.read(row, { ...names, parentId: parents.get(Number(row[PARENT])) ?? null }));
}

/** Returns ids of parents by key; most are on the page. Undefined if a parent no longer exists. */
async function parentsOf(
  { engine, db, namespace }: ReadScope,
  rows: readonly RunValues[],
): Promise<ReadonlyMap<number, string> | undefined> {
  const ids = new Map(rows.map((row) => [Number(row[KEY]), row[ID]]));
  const parents = rows.flatMap(({ [PARENT]: parent }) => (parent === null ? [] : [Number(parent)]));
  const missing = new Set(parents.filter((key) => !ids.has(key)));
  if (missing.size === 0) return ids;
  const query = engine.kept.of('ids of runs', [namespace, padded([...missing].map(BigInt))], (of, among) =>
    db.selectFrom('runs').select(['key', 'id']).where('namespace', '=', of).where('key', 'in', among),
  );
  const { rows: found } = await db.executeQuery(query);
  for (const { key, id } of found) ids.set(Number(key), id);
  return found.length < missing.size ? undefined : ids;
}

/** Names that all runs of a tree share. */
type TreeNames = Omit<RunNames, 'parentId'>;

async function namesOfTree(engine: Engine, namespace: string, runId: string): Promise<TreeNames | undefined> {
  const query = engine.kept.of('names of tree', [namespace, runId], (of, id) =>
    selectRun(engine.db, of, id)
      .innerJoin('runs as root', 'root.key', 'one.tree')
      .innerJoin('experiments as e', 'e.key', 'one.experiment')
      .select(['root.id as tree_id', 'e.id as experiment_id', 'e.name as experiment_name']),
  );
  const [row] = (await engine.db.executeQuery(query)).rows;
  return row && { treeId: row.tree_id, experimentId: row.experiment_id, experimentName: row.experiment_name };
}

function selectRun(db: Db, namespace: string, id: string) {
  return db
    .selectFrom('runs as one')
    .where('one.namespace', '=', namespace)
    .where('one.id', '=', id)
    .where(sql<boolean>`not one.hidden`);
}
