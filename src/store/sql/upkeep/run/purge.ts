import { type DeleteResult, sql } from 'kysely';
import type { Engine } from '../../kit/engine.ts';
import { CHUNK } from '../../kit/kept_queries.ts';
import { lockTrees, type Transaction, write } from '../../kit/transaction.ts';
import { discardGivenUp } from '../archive/discarded_imports.ts';
import { purgeTrajectories } from '../trajectory/purge.ts';
import { markPurging } from '../trajectory/purge_marks.ts';

/**
 * B2, B4: removes rows of deleted trajectories, runs and experiments, children before parents, so that an interrupted
 * purge can continue. Each transaction removes about `limit` rows and checks again under its locks, so that several
 * instances can purge at once.
 */
export function purgeDeleted(engine: Engine, limit: number): Promise<boolean> {
  return engine.transactions.giveWayAfter(() => purgeSome(engine, limit));
}

async function purgeSome(engine: Engine, limit: number): Promise<boolean> {
  for (const purge of [discardGivenUp, purgeTrajectories, markLate, purgeRuns, purgeExperiments]) {
    if ((await purge(engine, limit)) > 0) return true;
  }
  return false;
}

/**
 * Marks unmarked trajectories of deleted runs for the purge. A claim that locked its rollout before the deletion and
 * committed after it creates them. Returns how many it found.
 */
async function markLate(engine: Engine, limit: number): Promise<number> {
  const late = await engine.db
    .selectFrom('runs as h')
    .innerJoin('trajectories as t', 't.run', 'h.key')
    .select(['t.tree', 't.key'])
    .where(sql<boolean>`h.hidden and not t.purging`)
    .limit(limit)
    .execute();
  for (const [tree, members] of Map.groupBy(late, (each) => each.tree)) {
    await write(engine, async (tx) => {
      await lockTrees(tx, [tree]);
      const keys = members.map(({ key }) => key);
      const query = tx.db.selectFrom('trajectories').select('key').where('tree', '=', tree).where('key', 'in', keys);
      const rows = await engine.locks.rows(query.orderBy('key'), 'delete').execute();
      await markPurging(
        tx,
        tree,
        rows.map(({ key }) => key),
      );
    });
  }
  return late.length;
}

/** Runs per transaction. */
const PURGED_AT_ONCE = 20;

/** Purges runs that have no trajectories, newest first, so that a branch is removed before its parent. */
async function purgeRuns(engine: Engine, limit: number): Promise<number> {
  const runs = await engine.db
    .selectFrom('runs as h')
    .select('h.key')
    .where(sql<boolean>`h.hidden`)
    .where(({ not, exists, selectFrom }) =>
      not(exists(selectFrom('trajectories as t').select('t.key').whereRef('t.run', '=', 'h.key'))),
    )
    .orderBy('h.key', 'desc')
    .limit(PURGED_AT_ONCE)
    .execute();
  if (runs.length === 0) return 0;
  return write(engine, async (tx) => {
    let purged = 0;
    for (const { key } of runs) {
      if (purged >= limit) break;
      purged += await purgeRun(tx, key, limit - purged);
    }
    return purged;
  });
}

async function purgeRun(tx: Transaction, run: bigint, limit: number): Promise<number> {
  const query = tx.db.selectFrom('runs').select('key').where('key', '=', run).where('hidden', '=', 1);
  if ((await tx.engine.locks.rows(query, 'delete').executeTakeFirst()) === undefined) return 0;
  // First, because the cancellation of rollouts locks its row before the rollouts.
  await tx.db.deleteFrom('rollout_cancellations').where('run', '=', run).execute();
  let purged = await purgeRollouts(tx, run, limit);
  if (purged >= limit) return purged;
  // A claim that locked a rollout before the run was hidden may have committed since. Its trajectory must be purged
  // first; without rollouts, no other can follow.
  if (await hasTrajectories(tx, run)) return Math.max(purged, 1);
  for (const purge of [purgeEnvironments, purgeGroups, purgeSeries, purgeStages, purgeHistory]) {
    purged += await purge(tx, run, limit - purged);
    if (purged >= limit) return purged;
  }
  await tx.db.deleteFrom('runs').where('key', '=', run).execute();
  return purged + 1;
}

async function hasTrajectories(tx: Transaction, run: bigint): Promise<boolean> {
  return (await tx.db.selectFrom('trajectories').select('key').where('run', '=', run).executeTakeFirst()) !== undefined;
}

function purgeSeries(tx: Transaction, run: bigint, limit: number): Promise<number> {
  return purgeEach(tx, 'metric_series', run, limit, (key, left) => purgePoints(tx, key, left));
}

function purgeStages(tx: Transaction, run: bigint, limit: number): Promise<number> {
  return purgeEach(tx, 'stages', run, limit, (key, left) => purgeChanges(tx, run, { noun: 'STAGE', key }, left));
}

/** Deletes rows of a run, each after the rows that belong to it. */
async function purgeEach(
  tx: Transaction,
  table: 'metric_series' | 'stages',
  run: bigint,
  limit: number,
  purgeParts: (key: bigint, limit: number) => Promise<number>,
): Promise<number> {
  const rows = await tx.db.selectFrom(table).select('key').where('run', '=', run).limit(limit).execute();
  let purged = 0;
  for (const { key } of rows) {
    if (purged < limit) purged += await purgeParts(key, limit - purged);
    if (purged >= limit) break;
    await tx.db.deleteFrom(table).where('key', '=', key).execute();
    purged += 1;
  }
  return purged;
}

/** Deletes points in ascending order of step. */
async function purgePoints(tx: Transaction, series: bigint, limit: number): Promise<number> {
  const beyond = await tx.db
    .selectFrom('metric_points')
    .select('metric_step')
    .where('series', '=', series)
    .orderBy('metric_step')
    .offset(limit)
    .limit(1)
    .executeTakeFirst();
  const points = tx.db.deleteFrom('metric_points').where('series', '=', series);
  return removed(beyond === undefined ? points : points.where('metric_step', '<', beyond.metric_step));
}

function purgeHistory(tx: Transaction, run: bigint, limit: number): Promise<number> {
  return purgeChanges(tx, run, { noun: 'RUN', key: run }, limit);
}

/** Deletes changes in ascending order. */
async function purgeChanges(
  tx: Transaction,
  run: bigint,
  { noun, key }: { readonly noun: 'RUN' | 'STAGE'; readonly key: bigint },
  limit: number,
): Promise<number> {
  const ofEntity = { tree: run, entity_kind: noun, entity: key };
  const beyond = await tx.db
    .selectFrom('status_changes')
    .select('ordinal')
    .where((eb) => eb.and(ofEntity))
    .orderBy('ordinal')
    .offset(limit)
    .limit(1)
    .executeTakeFirst();
  const changes = tx.db.deleteFrom('status_changes').where((eb) => eb.and(ofEntity));
  return removed(beyond === undefined ? changes : changes.where('ordinal', '<', beyond.ordinal));
}

/** Purges experiments that have neither runs nor trajectories. */
async function purgeExperiments(engine: Engine, limit: number): Promise<number> {
  const found = await engine.db
    .selectFrom('experiments as h')
    .select('h.key')
    .where(sql<boolean>`h.hidden`)
    .where(({ not, exists, selectFrom }) =>
      not(exists(selectFrom('runs as r').select('r.key').whereRef('r.experiment', '=', 'h.key'))),
    )
    .where(({ not, exists, selectFrom }) =>
      not(exists(selectFrom('trajectories as t').select('t.key').whereRef('t.experiment', '=', 'h.key'))),
    )
    .limit(limit)
    .execute();
  if (found.length === 0) return 0;
  return write(engine, async (tx) => {
    let purged = 0;
    for (const { key } of found) {
      purged += await removed(tx.db.deleteFrom('experiments').where('key', '=', key).where('hidden', '=', 1));
    }
    return purged;
  });
}

/** Estimated rows per rollout or environment. A batch has this many times fewer rollouts than rows to remove. */
const ROWS_EACH = 5;

/**
 * B4: deletes rollouts of a deleted run with all their rows, except trajectories. The rollouts are locked first,
 * because writers of these rows hold that lock, so nothing is written after the purge. Removes about `limit` rows and
 * returns how many.
 */
async function purgeRollouts(tx: Transaction, run: bigint, limit: number): Promise<number> {
  return purgeBatches(limit, async (count) => {
    const some = tx.db.selectFrom('rollouts').select('key').where('run', '=', run).limit(count);
    const rows = await tx.engine.locks.rows(some, 'delete').execute();
    if (rows.length === 0) return 0;
    const keys = rows.map(({ key }) => key);
    let purged = await purgeChangesOf(tx, run, 'ROLLOUT', keys);
    for (const table of ['attempts', 'validations', 'validation_overrides', 'rollout_environments'] as const) {
      purged += await removed(tx.db.deleteFrom(table).where('rollout', 'in', keys));
    }
    return purged + (await removed(tx.db.deleteFrom('rollouts').where('key', 'in', keys)));
  });
}

/** Deletes the environments of a run with their links to rollouts. */
async function purgeEnvironments(tx: Transaction, run: bigint, limit: number): Promise<number> {
  return purgeBatches(limit, async (count) => {
    const rows = await tx.db.selectFrom('environments').select('key').where('run', '=', run).limit(count).execute();
    if (rows.length === 0) return 0;
    const keys = rows.map(({ key }) => key);
    const changes = await purgeChangesOf(tx, run, 'ENVIRONMENT', keys);
    const uses = await removed(tx.db.deleteFrom('rollout_environments').where('environment', 'in', keys));
    return changes + uses + (await removed(tx.db.deleteFrom('environments').where('key', 'in', keys)));
  });
}

async function purgeGroups(tx: Transaction, run: bigint, limit: number): Promise<number> {
  const some = tx.db.selectFrom('groups').select('key').where('run', '=', run).limit(limit);
  return removed(tx.db.deleteFrom('groups').where('key', 'in', some));
}

/** Purges batches until `limit` rows are removed or none is left. */
async function purgeBatches(limit: number, purgeSome: (count: number) => Promise<number>): Promise<number> {
  let purged = 0;
  while (purged < limit) {
    const count = Math.min(CHUNK, Math.max(1, Math.floor((limit - purged) / ROWS_EACH)));
    const rows = await purgeSome(count);
    if (rows === 0) break;
    purged += rows;
  }
  return purged;
}

async function purgeChangesOf(
  tx: Transaction,
  run: bigint,
  noun: 'ROLLOUT' | 'ENVIRONMENT',
  keys: readonly bigint[],
): Promise<number> {
  const changes = tx.db.deleteFrom('status_changes').where('tree', '=', run).where('entity_kind', '=', noun);
  return removed(changes.where('entity', 'in', keys));
}

async function removed(deletion: { executeTakeFirst(): Promise<DeleteResult> }): Promise<number> {
  return Number((await deletion.executeTakeFirst()).numDeletedRows);
}
