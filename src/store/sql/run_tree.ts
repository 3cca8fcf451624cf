import { sql } from 'kysely';
import type { Run } from '../../domain/run.ts';
import type { Page } from '../contract/page.ts';
import type { Db, Engine } from './engine.ts';
import { nameRuns, selectVisibleRuns, type TreeNames } from './run_rows.ts';
import type { RunValues } from './run_values.ts';

export async function listRunTree(
  engine: Engine,
  namespace: string,
  runId: string,
  page: Page<bigint>,
): Promise<Run[] | undefined> {
  const { after = 0n, limit } = page;
  const query = engine.kept.page('run tree', limit, [namespace, runId, after], (most, of, id, behind) =>
    selectVisibleRuns(engine, engine.db, of, 'BASIC')
      .where('r.tree', '=', selectRun(engine.db, of, id).select('one.tree'))
      .where('r.key', '>', behind)
      .orderBy('r.key')
      .limit(most),
  );
  const [names, rows] = await Promise.all([namesOfTree(engine, namespace, runId), engine.rows<RunValues>(query)]);
  // What is deleted between the two must not look like the end of its tree.
  const isThere =
    names !== undefined && (rows.length > 0 || (await namesOfTree(engine, namespace, runId)) !== undefined);
  return isThere ? nameRuns(engine, namespace, rows, names) : undefined;
}

async function namesOfTree(engine: Engine, namespace: string, runId: string): Promise<TreeNames | undefined> {
  const query = engine.kept.of('names of tree', [namespace, runId], (of, id) =>
    selectRun(engine.db, of, id)
      .innerJoin('runs as root', 'root.key', 'one.tree')
      .innerJoin('experiments as e', 'e.key', 'one.experiment')
      .select(['root.key', 'root.id', 'e.key as experiment_key', 'e.id as experiment_id', 'e.name']),
  );
  const [row] = (await engine.db.executeQuery(query)).rows;
  return (
    row && {
      tree: { key: row.key, id: row.id },
      experiment: { key: row.experiment_key, id: row.experiment_id, name: row.name },
    }
  );
}

function selectRun(db: Db, namespace: string, id: string) {
  return db
    .selectFrom('runs as one')
    .where('one.namespace', '=', namespace)
    .where('one.id', '=', id)
    .where(sql<boolean>`not one.hidden`);
}
