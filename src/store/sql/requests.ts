import { AnabranchError } from '../../domain/errors.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { IdempotencyKey } from '../contract/idempotency.ts';
import type { Db, Engine, Tx } from './engine.ts';
import { findByKey } from './trajectory_rows.ts';

/** ID1: what was made before under this key, as it is now; undefined if the key is new. */
export async function findMade(
  db: Db | Tx,
  namespace: string,
  key: IdempotencyKey | undefined,
): Promise<Trajectory | undefined> {
  if (key === undefined) return undefined;
  const row = await db
    .selectFrom('requests')
    .select(['request_digest', 'tree', 'resource', 'resource_id'])
    .where('namespace', '=', namespace)
    .where('rpc', '=', key.rpc)
    .where('request_id', '=', key.requestId)
    .executeTakeFirst();
  if (row === undefined) return undefined;
  if (row.request_digest !== key.requestDigest) throw requestIdReused(key.requestId);
  const made = await findByKey(db, namespace, row.tree, row.resource);
  if (made === undefined || made.hidden) throw madeAndDeleted(row.resource_id, key.requestId);
  return made;
}

/** Keeps the key in the transaction of the write. A racer that kept it first makes this fail on the primary key. */
export async function keepRequest(
  engine: Engine,
  tx: Tx,
  namespace: string,
  key: IdempotencyKey | undefined,
  made: { readonly tree: bigint; readonly key: bigint },
  id: string,
): Promise<void> {
  if (key === undefined) return;
  await tx
    .insertInto('requests')
    .values({
      namespace,
      rpc: key.rpc,
      request_id: key.requestId,
      request_digest: key.requestDigest,
      tree: made.tree,
      resource: made.key,
      resource_id: id,
      create_time: engine.now,
    })
    .execute();
}

export async function expireRequests(engine: Engine, days: number, limit: number): Promise<number> {
  return engine.write(async (tx) => {
    const old = await tx
      .selectFrom('requests')
      .select(['namespace', 'rpc', 'request_id'])
      .where('create_time', '<', engine.hoursAgo(days * 24))
      .limit(limit)
      .execute();
    for (const { namespace, rpc, request_id } of old) {
      await tx
        .deleteFrom('requests')
        .where('namespace', '=', namespace)
        .where('rpc', '=', rpc)
        .where('request_id', '=', request_id)
        .execute();
    }
    return old.length;
  });
}

function madeAndDeleted(trajectoryId: string, requestId: string): AnabranchError {
  return new AnabranchError(
    'TRAJECTORY_NOT_FOUND',
    `Trajectory ${trajectoryId}, made under request_id "${requestId}", was deleted since: use a new request_id to make another.`,
    { metadata: { trajectory_id: trajectoryId } },
  );
}

function requestIdReused(requestId: string): AnabranchError {
  return new AnabranchError(
    'REQUEST_ID_REUSED',
    `request_id "${requestId}" was used for another request of this RPC: use a new one for each thing to make.`,
    { metadata: { request_id: requestId } },
  );
}
