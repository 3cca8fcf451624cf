import type { Selectable } from 'kysely';
import type { Caller } from '../../../domain/caller.ts';
import { AnabranchError, type Reason } from '../../../domain/errors.ts';
import type { IdempotencyKey } from '../../contract/request.ts';
import type { Engine } from './engine.ts';
import type { Tables } from './tables.ts';
import {
  type CallerTransaction,
  type NamespaceTransaction,
  type ReadScope,
  scopeOf,
  write,
  writeAs,
} from './transaction.ts';
import { TRIES, UniqueViolation } from './unique_violation.ts';

/** Keys of the tree and the row that a request created. */
interface MadeRef {
  readonly tree: bigint;
  readonly key: bigint;
}

/** How idempotency looks up and names a resource. */
export interface Noun<T> {
  readonly name: keyof typeof WORDS;
  /** Returns the current value of a created resource; undefined if it was deleted. */
  find(scope: ReadScope, ref: MadeRef): Promise<T | undefined>;
}

/** Error reason and metadata key of a missing resource. */
const WORDS = {
  Trajectory: { reason: 'TRAJECTORY_NOT_FOUND', metadata: 'trajectory_id' },
  Experiment: { reason: 'EXPERIMENT_NOT_FOUND', metadata: 'experiment' },
  Run: { reason: 'RUN_NOT_FOUND', metadata: 'run' },
} as const;

/** Errors that a concurrent request with the same key may have caused. */
const TAKEN: ReadonlySet<Reason> = new Set(['TRAJECTORY_EXISTS', 'EXPERIMENT_EXISTS', 'RUN_EXISTS', 'CONFIG_MISMATCH']);

/**
 * ID1: creates at most one resource per key. Concurrent requests with the key return the same resource. `make` rejects
 * conflicts with an error. If a concurrent creation causes a unique violation, `make` runs again and finds it.
 */
export async function makeOnce<E extends Engine, T>(
  engine: E,
  caller: Caller,
  key: IdempotencyKey | undefined,
  noun: Noun<T>,
  make: (tx: CallerTransaction<E>) => Promise<{ readonly ref: MadeRef; readonly id: string; readonly made: T }>,
): Promise<T> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await writeAs(engine, caller, async (tx) => {
        const before = await findMade(tx, key, noun);
        if (before !== undefined) return before;
        const { ref, id, made } = await make(tx);
        await keepRequest(tx, key, ref, id);
        return made;
      });
    } catch (error) {
      const raced = error instanceof UniqueViolation;
      if (!raced && !(error instanceof AnabranchError && TAKEN.has(error.reason))) throw error;
      const made = await findMade(scopeOf(engine, caller.namespace), key, noun);
      if (made !== undefined) return made;
      if (!raced || attempt === TRIES) throw error;
    }
  }
}

/** Returns the resource that was created with this key; undefined if the key is new. */
async function findMade<T>(scope: ReadScope, key: IdempotencyKey | undefined, noun: Noun<T>): Promise<T | undefined> {
  return key && madeBy(scope, key, await findRequest(scope, key), noun);
}

type KeptRequest = Pick<Selectable<Tables['requests']>, 'request_digest' | 'tree' | 'resource' | 'resource_id'>;

/** Returns the request that was stored with this key; undefined if the key is new. */
export function findRequest(scope: ReadScope, key: IdempotencyKey): Promise<KeptRequest | undefined> {
  return scope.db
    .selectFrom('requests')
    .select(['request_digest', 'tree', 'resource', 'resource_id'])
    .where('namespace', '=', scope.namespace)
    .where('rpc', '=', key.rpc)
    .where('request_id', '=', key.requestId)
    .executeTakeFirst();
}

/** Returns what the stored request created; undefined if there is none. Errors: REQUEST_ID_REUSED, or NOT_FOUND. */
export async function madeBy<T>(
  scope: ReadScope,
  key: IdempotencyKey,
  request: KeptRequest | undefined,
  noun: Noun<T>,
): Promise<T | undefined> {
  if (request === undefined) return undefined;
  requireSame(key, request);
  const made = await noun.find(scope, { tree: request.tree, key: request.resource });
  if (made === undefined) throw madeAndDeleted(noun.name, request.resource_id, key.requestId);
  return made;
}

/** Errors: REQUEST_ID_REUSED. */
export function requireSame(key: IdempotencyKey, request: KeptRequest): void {
  if (request.request_digest !== key.requestDigest) throw requestIdReused(key.requestId);
}

/**
 * Stores the key in the transaction of the creation. If a concurrent request stored it first, the primary key rejects
 * it.
 */
export async function keepRequest(
  tx: NamespaceTransaction,
  key: IdempotencyKey | undefined,
  made: MadeRef,
  id: string,
): Promise<void> {
  if (key === undefined) return;
  await tx.db
    .insertInto('requests')
    .values({
      namespace: tx.namespace,
      rpc: key.rpc,
      request_id: key.requestId,
      request_digest: key.requestDigest,
      tree: made.tree,
      resource: made.key,
      resource_id: id,
      create_time: tx.engine.sql.now,
    })
    .execute();
}

/** Days for which the id of a deleted trajectory is kept (W1, check 0). */
const DELETED_ID_DAYS = 400;

export async function expireRequests(engine: Engine, days: number, limit: number): Promise<number> {
  return write(engine, async (tx) => {
    const ids = await tx.db
      .selectFrom('deleted_trajectories')
      .select(['namespace', 'id'])
      .where('delete_time', '<', engine.sql.hoursAgo(DELETED_ID_DAYS * 24))
      .limit(limit)
      .execute();
    for (const { namespace, id } of ids) {
      await tx.db.deleteFrom('deleted_trajectories').where('namespace', '=', namespace).where('id', '=', id).execute();
    }
    const old = await tx.db
      .selectFrom('requests')
      .select(['namespace', 'rpc', 'request_id'])
      .where('create_time', '<', engine.sql.hoursAgo(days * 24))
      .limit(limit)
      .execute();
    for (const { namespace, rpc, request_id } of old) {
      await tx.db
        .deleteFrom('requests')
        .where('namespace', '=', namespace)
        .where('rpc', '=', rpc)
        .where('request_id', '=', request_id)
        .execute();
    }
    return Math.max(old.length, ids.length);
  });
}

function madeAndDeleted(noun: keyof typeof WORDS, id: string, requestId: string): AnabranchError {
  const { reason: gone, metadata } = WORDS[noun];
  return new AnabranchError(
    gone,
    `${noun} ${id}, which was created with request_id "${requestId}", was deleted. Use a new request_id to create another one.`,
    { metadata: { [metadata]: id } },
  );
}

/** ID1: the key came with another request. */
export function requestIdReused(requestId: string): AnabranchError {
  return new AnabranchError(
    'REQUEST_ID_REUSED',
    `request_id "${requestId}" was used for another request of this RPC: use a new request_id for each request.`,
    { metadata: { request_id: requestId } },
  );
}
