import { sql } from 'kysely';
import { AnabranchError } from '../../../domain/errors.ts';
import type { RunDeletion } from '../../contract/experiment.ts';
import type { Engine } from '../kit/engine.ts';
import { nextIteration } from '../kit/reading/slots.ts';
import type { Tables } from '../kit/tables.ts';
import { write } from '../kit/transaction.ts';
import { deleteExperiment, LIVE, runActive } from './run/deletion.ts';
import { purgeDeleted } from './run/purge.ts';
import { deleteTrajectory } from './trajectory/deletion.ts';

/** Rows that one transaction removes. */
const REMOVED_AT_ONCE = 500;

/**
 * Tables whose rows belong to a namespace itself, with the columns that name a row in it. Rows of a table name rows of
 * the tables after it.
 */
const OWN = {
  retention_policies: ['name'],
  validators: ['key'],
  tasks: ['key'],
  requests: ['rpc', 'request_id'],
  deleted_trajectories: ['id'],
} as const satisfies Partial<Record<keyof Tables, readonly string[]>>;

/**
 * B6: deletes everything in a namespace by the deletions of its parts, so that each transaction is bounded, apart from
 * that of an experiment. States that nothing refers to any more are collected as usual (S2).
 */
export async function* deleteNamespace(
  engine: Engine,
  namespace: string,
  cancelLive: boolean,
): AsyncGenerator<RunDeletion, void, undefined> {
  const live = cancelLive ? 0n : await countLive(engine, namespace);
  if (live > 0n) throw runActive(`Namespace ${namespace}`, live);
  for await (const id of visible(engine, namespace, 'experiments')) {
    yield await unlessGone(() => deleteExperiment(engine, namespace, id, 'CASCADE', cancelLive));
  }
  for await (const id of visible(engine, namespace, 'trajectories')) {
    yield await unlessGone(async () => {
      const { purged, keys } = await deleteTrajectory(engine, namespace, id, 'CASCADE');
      return { runs: 0n, trajectories: purged, runKeys: [], trajectoryKeys: keys };
    });
  }
  // Rollouts name tasks, and a purge of trajectories leaves their ids.
  while (await purgeDeleted(engine, REMOVED_AT_ONCE)) yield NOTHING;
  for (const table of Object.keys(OWN) as (keyof typeof OWN)[]) {
    while (await removeSome(engine, namespace, table)) yield NOTHING;
  }
}

const NOTHING: RunDeletion = { runs: 0n, trajectories: 0n, runKeys: [], trajectoryKeys: [] };

/** Another caller may have deleted it first. */
async function unlessGone(deletes: () => Promise<RunDeletion>): Promise<RunDeletion> {
  try {
    return await deletes();
  } catch (error) {
    if (error instanceof AnabranchError && GONE.has(error.reason)) return NOTHING;
    throw error;
  }
}

const GONE: ReadonlySet<string> = new Set(['EXPERIMENT_NOT_FOUND', 'TRAJECTORY_NOT_FOUND']);

async function countLive(engine: Engine, namespace: string): Promise<bigint> {
  const status = sql.join(LIVE.map((each) => sql.lit(each)));
  const [[live] = [0]] = await engine.reads.rows<[live: number]>(sql`
    select count(*) from ${engine.sql.table('runs')} as h
    inner join ${engine.sql.table('rollouts')} as o on o.run = h.key
    where h.namespace = ${namespace} and not h.hidden and o.status in (${status})`);
  return BigInt(live);
}

/** The ids of what is not deleted, by key. The caller deletes each before it asks for the next. */
async function* visible(
  engine: Engine,
  namespace: string,
  table: 'experiments' | 'trajectories',
): AsyncGenerator<string, void, undefined> {
  for (let last = -1n; ; ) {
    const next = await engine.db
      .selectFrom(table)
      .select(['key', 'id'])
      .where('namespace', '=', namespace)
      .where('hidden', '=', 0)
      .where('key', '>', last)
      .orderBy('key')
      .limit(1)
      .executeTakeFirst();
    if (next === undefined) return;
    last = next.key;
    yield next.id;
  }
}

async function removeSome(engine: Engine, namespace: string, table: keyof typeof OWN): Promise<boolean> {
  await nextIteration();
  return write(engine, async (tx) => {
    const key = sql.join(OWN[table].map((column) => sql.ref(column)));
    const { numAffectedRows = 0n } = await sql`
      delete from ${engine.sql.table(table)} where namespace = ${namespace} and (${key}) in (
        select ${key} from ${engine.sql.table(table)} where namespace = ${namespace} limit ${sql.lit(REMOVED_AT_ONCE)})`.execute(
      tx.db,
    );
    return numAffectedRows > 0n;
  });
}
