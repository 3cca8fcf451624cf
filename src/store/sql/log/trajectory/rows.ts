import type { CompiledQuery, Selectable, SelectQueryBuilder } from 'kysely';
import { parseInstant } from '../../../../domain/instant.ts';
import type { TrajectoryStatus } from '../../../../domain/lifecycle.ts';
import type { Trajectory, TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { Db } from '../../kit/engine.ts';
import { chunksOf, padded } from '../../kit/kept_queries.ts';
import type { Tables, TrajectoriesTable } from '../../kit/tables.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import {
  isSet,
  readLabels,
  readList,
  readMetrics,
  readOptionalReal,
  readOptionalTime,
  readReal,
} from '../../kit/values.ts';

export type TrajectoryRow = Selectable<TrajectoriesTable> & {
  tree_id: string | null;
  parent_id: string | null;
  run_id: string | null;
  experiment_id: string | null;
};

/** Selects all columns of trajectories (`t`), with the ids of root, parent, run and experiment. */
export function selectTrajectories(db: Db) {
  return db
    .selectFrom('trajectories as t')
    .selectAll('t')
    .select((eb) => [
      eb
        .selectFrom('trajectories as r')
        .select('r.id')
        .whereRef('r.tree', '=', 't.tree')
        .whereRef('r.key', '=', 't.tree')
        .as('tree_id'),
      eb
        .selectFrom('trajectories as p')
        .select('p.id')
        .whereRef('p.tree', '=', 't.tree')
        .whereRef('p.key', '=', 't.parent')
        .as('parent_id'),
      eb.selectFrom('runs as b').select('b.id').whereRef('b.key', '=', 't.run').as('run_id'),
      eb.selectFrom('experiments as e').select('e.id').whereRef('e.key', '=', 't.experiment').as('experiment_id'),
    ]);
}

export type TrajectoryQuery = SelectQueryBuilder<{ t: TrajectoriesTable } & Tables, 't', TrajectoryRow>;

export async function findById({ engine, db, namespace }: ReadScope, id: string): Promise<Trajectory | undefined> {
  const query = engine.kept.byKey('trajectory by id', [namespace, id], (of, own) =>
    selectTrajectories(db).where('t.namespace', '=', of).where('t.id', '=', own),
  );
  return readFirst(db, query);
}

export async function findByKey(
  { engine, db, namespace }: ReadScope,
  tree: bigint,
  key: bigint,
): Promise<Trajectory | undefined> {
  const query = engine.kept.byKey('trajectory by key', [tree, key, namespace], (inTree, own, of) =>
    selectTrajectories(db).where('t.tree', '=', inTree).where('t.key', '=', own).where('t.namespace', '=', of),
  );
  return readFirst(db, query);
}

/** Returns the keys of the visible trajectories among these ids. */
export async function findRefs(
  { engine, db, namespace }: ReadScope,
  ids: readonly string[],
): Promise<ReadonlyMap<string, TrajectoryRef>> {
  const refs = new Map<string, TrajectoryRef>();
  for (const some of chunksOf(ids)) {
    const query = engine.kept.byKey('trajectories by ids', [namespace, padded(some)], (of, among) =>
      db
        .selectFrom('trajectories')
        .select(['id', 'tree', 'key'])
        .where('namespace', '=', of)
        .where('id', 'in', among)
        .where('hidden', '=', 0),
    );
    for (const { id, tree, key } of (await db.executeQuery(query)).rows) refs.set(id, { tree, key });
  }
  return refs;
}

async function readFirst(db: Db, query: CompiledQuery<TrajectoryRow>): Promise<Trajectory | undefined> {
  const [row] = (await db.executeQuery(query)).rows;
  return row === undefined ? undefined : readTrajectory(row);
}

export function readTrajectory(row: TrajectoryRow): Trajectory {
  return {
    ref: { tree: row.tree, key: row.key },
    id: row.id,
    uid: row.uid,
    treeId: row.tree_id ?? row.id,
    parent:
      row.parent === null || row.branch_point === null
        ? undefined
        : { key: row.parent, id: row.parent_id ?? '', branchPoint: row.branch_point },
    name: row.name,
    taskId: row.task_id,
    runId: row.run_id ?? '',
    experimentId: row.experiment_id ?? '',
    labels: readLabels(row.labels),
    metadataJson: row.metadata_json,
    metrics: readMetrics(row.metrics),
    scoredMetrics: readList(row.scored_metrics),
    status: row.status as TrajectoryStatus,
    statusMessage: row.status_message,
    writerId: row.writer_id,
    writerEpoch: row.writer_epoch,
    nextStepNumber: row.next_step_number,
    rewardSum: readReal(row.reward_sum),
    branchRewardSum: readOptionalReal(row.branch_reward_sum),
    createTime: parseInstant(row.create_time),
    updateTime: parseInstant(row.update_time),
    sealTime: readOptionalTime(row.seal_time),
    hidden: isSet(row.hidden),
  };
}
